"""Where the effective value of one frozen variable is stored, as a plain value that needs neither graph nor plan.

The passes read it off a rewritten model, and whatever runs the model puts values in and takes them out through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from graphfreeze.graph.examples import Features
from graphfreeze.savedmodel import NodePath
from graphfreeze.selection import Region, complement

SLOT = ".OPTIMIZER_SLOT"
"""In a place, as in a checkpoint key: optimizer, this, the slot's name, the variable that it is a slot of."""


@dataclass(frozen=True, slots=True)
class StoredRegion:
    """A region of a variable that lies in a variable of its own."""

    name: str
    place: NodePath
    """Child names from the root to it."""
    keys: tuple[str, ...]
    """Its checkpoint keys; Keras 3 writes a variable twice."""
    region: Region
    trainable: bool


@dataclass(frozen=True, slots=True)
class Holding:
    """One frozen variable: the base, which is the variable of the source, and what is laid over it."""

    name: str
    path: str
    """Its path in the source."""
    strategy: str
    frozen: Region
    base_trains: bool
    place: NodePath
    """Child names from the root to the base."""
    keys: tuple[str, ...]
    source_place: NodePath
    """Child names from the root of the plain model to the variable."""
    source_keys: tuple[str, ...]
    stored: tuple[StoredRegion, ...]
    by_guards: bool = False
    """Whether guards alone hold it, as no optimizer is given it: reads of it, and gradients, are the plain model's."""
    always: Region | None = None
    """Elements that no phase trains, where some of ``frozen`` train in another phase."""

    @property
    def unmoved(self) -> Region:
        """Elements that are what they were, whatever phases trained."""
        return self.frozen if self.always is None else self.always

    @property
    def trainable(self) -> Region:
        """The elements that train."""
        return complement(self.frozen)

    def effective(self, base: NDArray[np.generic], stored: Sequence[NDArray[np.generic]]) -> NDArray[np.generic]:
        """The effective value, from the values of the base and of ``stored``."""
        value = np.array(base)
        for part, held in zip(self.stored, stored, strict=True):
            value = part.region.put(value, held)
        return value

    def poisoned(self, value: NDArray[np.generic]) -> tuple[NDArray[np.generic], tuple[NDArray[np.generic], ...]]:
        """Values of the base and of ``stored`` that hold an effective value, with NaN wherever nothing may read."""
        base = np.array(value)
        for part in self.stored:
            base = part.region.put(base, np.full(part.region.storage_shape, np.nan, base.dtype))
        return base, tuple(np.asarray(part.region.take(value), order="C") for part in self.stored)


@dataclass(frozen=True, slots=True)
class Other:
    """One trainable variable that the freeze leaves alone."""

    name: str
    path: str
    elements: int
    place: NodePath
    source_place: NodePath


@dataclass(frozen=True, slots=True)
class Callable:
    """One function or signature, in the plain model and in the rewritten one."""

    label: str
    place: NodePath
    number: int | None
    source_place: NodePath
    is_signature: bool
    bounds: tuple[int | None, ...]
    """For each tensor that it takes, the integer that no element may reach; None where the graph sets none."""
    uses: dict[str, int]
    """How often it uses the value of each variable, by path."""
    writes: tuple[tuple[NodePath, NodePath], ...]
    """(place in the plain model, place in the rewritten one) of each variable that it changes."""
    examples: tuple[Features | None, ...] = ()
    """For each tensor that it takes, the features of the ``tf.Example`` protos that it holds; None for other ones."""
    still: frozenset[NodePath] = frozenset()
    """Places in the plain model of slots that serve only variables that are frozen whole: they must not move."""
    apart: str = ""
    """Why the plain model does not do what the function does in the rewritten one; else nothing."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that a rewritten model says of itself and that is not so."""

    check: str
    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What must hold of a rewritten meta graph, and what of it can be seen without running it."""

    tags: tuple[str, ...]
    holdings: tuple[Holding, ...]
    others: tuple[Other, ...]
    trains: tuple[NodePath, ...]
    """Places of what an optimizer gets, in order."""
    listed: bool
    """Whether ``info`` is there to list them."""
    callables: tuple[Callable, ...]
    problems: tuple[Problem, ...]
    saved_again: bool
    """Whether TensorFlow has written the model since the rewrite."""
    sources: tuple[str, ...]
    """Digests of what was rewritten."""
    words: tuple[str, ...]
    """Strings that the model's own tables and text files hold."""
    phase: str = ""
    """The phase whose functions ``callables`` are; empty for functions outside of phases."""
    examples: dict[str, Features] = field(default_factory=dict)
    """By input tensor of a signature, in the main graph: the features of the ``tf.Example`` protos that it holds."""
