"""What a trace finds: every use of every variable, as values that passes read and never search for again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from graphfreeze.graph.access import ReadAccess
from graphfreeze.graph.norms import Norm
from graphfreeze.graph.ops import CallOp
from graphfreeze.graph.refs import producer
from graphfreeze.graph.scope import Use
from graphfreeze.graph.variables import Variable, is_float

SOURCE_NOT_FOUND = "source not found"
"""Said of a write whose gradient goes into a norm, frozen elements included."""

Kind = Literal["weight", "statistic", "state"]


@dataclass(frozen=True, slots=True)
class Key:
    """A function together with the variables that its arguments are bound to: (argument position, variable)."""

    function: str
    binding: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Read:
    """One read. ``slot`` is the argument position that the handle came in by, -1 in the main graph."""

    variable: int
    slot: int
    node: str
    op: str
    access: ReadAccess


@dataclass(frozen=True, slots=True)
class Write:
    """One op that changes a variable, which it takes as data input ``index``."""

    variable: int
    slot: int
    node: str
    op: str
    index: int = 0
    shared: bool = False
    """TF1 main graph: another write of the variable may run beside it, in no order."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A use that no table explains."""

    variable: int
    node: str
    op: str
    why: str


@dataclass(frozen=True, slots=True)
class Callee:
    """One function that a call runs: in attribute ``attribute``, at ``index`` where that holds a list."""

    attribute: str
    index: int | None
    key: Key


@dataclass(frozen=True, slots=True)
class Call:
    """A node that runs functions and hands variables to them."""

    node: str
    op: CallOp
    start: int
    """First input that is passed on."""
    offset: int
    """Argument position of that input."""
    slots: tuple[tuple[int, int], ...]
    """(argument position in the callee, slot in this scope) of every handle that is passed on."""
    callees: tuple[Callee, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor of a variable's gradient that a norm (or another reduction) is computed from, in one scope.

    ``uses`` take it on the way to the norm and to the variable's writes, and nothing else. A sparse gradient holds the
    rows ``ids`` (edge and dtype number). ``writes`` are those that it leads to, each by its function and node.
    """

    variable: int
    tensor: str
    dtype: int
    uses: tuple[Use, ...]
    ids: tuple[str, int] | None
    writes: frozenset[tuple[Key, str]]


@dataclass(slots=True)
class Body:
    """All uses of variables in one scope under one binding."""

    key: Key
    reads: list[Read] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    restores: list[Write] = field(default_factory=list)
    """Writes that bring back what was saved: no writes in the sense of design.md."""
    unknown: list[Unknown] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    """Slots whose handle is used as such: written, returned, or given to an inert op."""
    returned: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Result position -> (variable, slot) of handles that the function gives back."""
    named: list[Read] = field(default_factory=list)
    """TF1 main graph: reads whose value nothing computes with; a Session may fetch them by name all the same."""
    setup: frozenset[str] = frozenset()
    """TF1 main graph: nodes that initialise, save or restore, and what is computed for those alone."""
    handles: frozenset[str] = frozenset()
    """TF1 main graph: every edge that carries a variable."""
    sources: list[Source] = field(default_factory=list)
    unmasked: set[tuple[int, str]] = field(default_factory=set)
    """(variable, write) where a norm is computed and no source was found."""
    by_mod: dict[int, int] = field(default_factory=dict)
    """TF1 main graph: part of a partitioned variable -> number of parts, where ids are dealt out by ``mod``."""
    norms: list[Norm] = field(default_factory=list)
    """Batch norms that have a gamma or a beta."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The variables of a meta graph and all their uses."""

    variables: tuple[Variable, ...]
    bodies: dict[Key, Body]
    roots: dict[str, Key]
    """Concrete function -> its key."""
    main: Body
    is_tf2: bool

    def reads(self, variable: int) -> Iterator[tuple[str, Read]]:
        """(function, read) of one variable."""
        return ((b.key.function, r) for b in self.all_bodies() for r in b.reads if r.variable == variable)

    def writes(self, variable: int) -> Iterator[tuple[str, Write]]:
        """(function, write) of one variable."""
        return ((b.key.function, w) for b in self.all_bodies() for w in b.writes if w.variable == variable)

    def gradients(self, variable: int) -> Iterator[str | None]:
        """For each of ``writes``: where the gradient behind it is masked; None where no norm is computed from it."""
        for body in self.all_bodies():
            for write in body.writes:
                if write.variable == variable:
                    yield self._gradient(body, write)

    def _gradient(self, body: Body, write: Write) -> str | None:
        for other in (body, *self.all_bodies()):
            for source in other.sources:
                if source.variable == write.variable and (body.key, write.node) in source.writes:
                    place = f"'{other.key.function}'" if other.key.function else "the main graph"
                    where = "" if other is body else f" in {place}"
                    return f"masked at '{producer(source.tensor)}'{where}"
        return SOURCE_NOT_FOUND if (write.variable, write.node) in body.unmasked else None

    def restored(self, variable: int) -> bool:
        """Whether a function of the model restores the variable from a checkpoint."""
        return any(w.variable == variable for b in self.all_bodies() for w in b.restores)

    def unknown(self, variable: int) -> Iterator[tuple[str, Unknown]]:
        """(function, use) of one variable that no table explains."""
        return ((b.key.function, u) for b in self.all_bodies() for u in b.unknown if u.variable == variable)

    def all_bodies(self) -> Iterator[Body]:
        """The main graph, then every function body."""
        yield self.main
        yield from self.bodies.values()

    def trains(self, variable: Variable) -> bool:
        """Whether an optimizer is given it: a weight, or the trainable part of one in a rewritten model."""
        part = variable.trainable and "/graphfreeze/" in variable.name and is_float(variable.dtype)
        return part or self.kind(variable) == "weight"

    def kind(self, variable: Variable) -> Kind:
        """``weight``, ``statistic`` or ``state``, in the sense of design.md."""
        if variable.is_state or not is_float(variable.dtype) or "/graphfreeze/" in variable.name:
            return "state"
        if variable.trainable:
            return "weight"
        return "statistic" if any(True for _ in self.writes(variable.index)) else "state"
