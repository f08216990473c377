"""A loaded model whose objects are found by their places in the object graph."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphfreeze.errors import InputOutputError
from graphfreeze.lowering.holding import SLOT, Callable, Evidence, Holding, Other
from graphfreeze.savedmodel import NodePath


class Loaded:
    """What ``tf.saved_model.load`` gives, afresh. ``plain`` says which of a callable's two places counts."""

    def __init__(self, path: Path, *, plain: bool) -> None:
        import tensorflow as tf

        self.plain = plain
        self.root = tf.saved_model.load(str(path))
        self._found: dict[NodePath, Any] = {(): self.root}

    def at(self, place: NodePath) -> Any:
        """The object that child names lead to.

        Raises:
            LookupError: there is none.
        """
        if place not in self._found and SLOT in place:
            at = place.index(SLOT)
            self._found[place] = self.at(place[:at]).get_slot(self.at(place[at + 2 :]), place[at + 1])
        elif place not in self._found:
            above = self.at(place[:-1])
            # What a SavedModel calls a child: list entries and dictionary entries included.
            self._found[place] = above._trackable_children()[place[-1]]
        return self._found[place]

    def function(self, callable_: Callable) -> Any:
        """The concrete function.

        Raises:
            LookupError: TensorFlow does not give it back.
        """
        place = callable_.source_place if self.plain else callable_.place
        if callable_.is_signature:
            return self.root.signatures[place[1]]
        found = self.at(place)
        return found if callable_.number is None else found.concrete_functions[callable_.number]

    @contextmanager
    def kept(self, callable_: Callable) -> Iterator[None]:
        """Puts back afterwards what the function writes."""
        written = [self.at(pair[0 if self.plain else 1]) for pair in callable_.writes]
        before = [(v, v.read_value()) for v in written if v.is_initialized()]
        try:
            yield
        finally:
            for variable, value in before:
                variable.assign(value)

    def base(self, holding: Holding) -> Any:
        """The variable of the source."""
        return self.at(holding.source_place if self.plain else holding.place)

    def other(self, other: Other) -> Any:
        """A trainable variable that the freeze leaves alone."""
        return self.at(other.source_place if self.plain else other.place)

    def trains(self, evidence: Evidence) -> list[Any]:
        """What an optimizer gets; in the plain model, whole, what trains at least in part."""
        if not self.plain:
            return [self.at(place) for place in evidence.trains]
        held = (h for h in evidence.holdings if not h.trainable.is_empty)
        return [*(self.base(h) for h in held), *(self.other(o) for o in evidence.others)]

    def effective(self, holding: Holding) -> NDArray[Any]:
        """The effective value as it is now."""
        base = np.asarray(self.base(holding).numpy())
        if self.plain:
            return base
        return holding.effective(base, [np.asarray(self.at(s.place).numpy()) for s in holding.stored])

    def poison(self, holding: Holding, value: NDArray[Any]) -> None:
        """Makes ``value`` the effective one, with NaN in all storage that nothing may read."""
        if self.plain:
            self.base(holding).assign(value)
            return
        base, stored = holding.poisoned(value)
        self.base(holding).assign(base)
        for part, held in zip(holding.stored, stored, strict=True):
            self.at(part.place).assign(held)


def prepare(*, old_keras: bool) -> None:
    """Makes this process ready to load the model.

    Raises:
        InputOutputError: the model needs tf_keras, and it is not there.
    """
    if not old_keras:
        return
    try:
        importlib.import_module("tf_keras")
    except ImportError:
        raise InputOutputError(
            "The model holds an optimizer of Keras 2, which TensorFlow loads only beside tf_keras. Install it with: "
            "pip install tf_keras"
        ) from None


def fresh_value(holding: Holding, value: NDArray[Any], seed: int) -> NDArray[Any]:
    """An effective value with new random numbers, of the old ones' size, wherever the variable trains."""
    generator = np.random.default_rng([seed, *holding.path.encode()])
    size = _size(value)
    fresh = generator.standard_normal(value.shape)
    if value.dtype.kind == "c":
        fresh = fresh + 1j * generator.standard_normal(value.shape)
    trainable = holding.trainable
    if trainable.is_empty:
        return np.array(value)
    return trainable.put(value, trainable.take((fresh * size).astype(value.dtype)))


def _size(value: NDArray[Any]) -> float:
    wide = np.abs(value.astype(np.complex128))
    finite = wide[np.isfinite(wide)]
    found = float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
    return found or 1.0
