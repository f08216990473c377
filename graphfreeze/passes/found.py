"""What a rewrite left in a meta graph, as values: ``marks`` reads it from functions, ``tf1_marks`` from a TF1 graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphfreeze.lowering.facts import Fact
from graphfreeze.passes.info import INFO_FUNCTION
from graphfreeze.savedmodel import children
from graphfreeze.savedmodel.protos import Message
from graphfreeze.selection import Region


@dataclass(frozen=True, slots=True)
class Frozen:
    """One variable that carries a freeze: the fact, and the variables that are its storages by role."""

    variable: int
    fact: Fact
    storages: dict[str, int]
    holder: Holder | None
    """Where ``info`` speaks of it."""

    @property
    def region(self) -> Region:
        """Its frozen elements: those that no phase trains."""
        return self.fact.frozen()


@dataclass(frozen=True, slots=True, eq=False)
class Holder:
    """The child ``graphfreeze`` of a rewritten root, wherever that root now stands in the object graph."""

    parent: int
    node: int
    info: dict[str, Any]
    function: str
    """The concrete function ``info``."""

    def place(self, graph: Message, path: str) -> int | None:
        """The object-graph node of a variable that had this path in the source."""
        names: list[str] | None = self.info["places"].get(path)
        if names is None:
            return None
        number: int | None = self.parent
        for name in names:
            number = None if number is None else children(graph, number).get(name)
        return number


@dataclass(frozen=True, slots=True)
class Marks:
    """All that a rewrite left in one meta graph."""

    frozen: tuple[Frozen, ...]
    ours: frozenset[int]
    """Variables that the rewrite added, and slots of optimizers for them."""
    holders: tuple[Holder, ...]
    enabled: tuple[int, ...]
    """Variables that were turned on and hold nothing frozen."""
    graph_phases: tuple[dict[str, Any], ...] = ()
    """TF1: the phases, which ``info`` tells of in a TF2 model."""

    @property
    def phases(self) -> tuple[dict[str, Any], ...]:
        """The phases as the rewrite noted them."""
        noted = (p for h in self.holders[:1] for p in h.info.get("phases", ()))
        return (*self.graph_phases, *noted)

    @property
    def saved_again(self) -> bool:
        """Whether TensorFlow has written the model since the rewrite."""
        return [h.function for h in self.holders] != [INFO_FUNCTION]

    @property
    def info_functions(self) -> frozenset[str]:
        """Concrete functions that only tell about the freeze."""
        return frozenset(h.function for h in self.holders)
