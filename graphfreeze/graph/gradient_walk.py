"""The way of one variable's gradient through one scope, walked from the writes back.

Walked are tensors of the variable's shape (or rows of it, with the ids of the rows) that are computed element by
element: what is zero at an element stays zero there. Beside it run the *sides*, smaller tensors that scale it, such as
the factor of a clipping. Where a side is computed from a reduction of a walked tensor, that tensor is *tapped*.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from graphfreeze.graph.gradient_ops import (
    DECIDES,
    ELEMENTWISE,
    LOOP_ENDS,
    PARALLEL,
    REDUCTIONS,
    SEGMENT_SUMS,
    SHAPING,
    UNIQUE,
)
from graphfreeze.graph.ops import CALLS
from graphfreeze.graph.refs import attr_of, parse_ref, producer
from graphfreeze.graph.scope import Scope, Use
from graphfreeze.savedmodel.protos import NodeDef


@dataclass(frozen=True, slots=True)
class Ids:
    """The numbers of the rows that a sparse gradient holds: an edge and its dtype."""

    ref: str
    dtype: int


@dataclass(frozen=True, slots=True)
class Step:
    """A tensor on the way, the edge that takes it, and its rows' ids where it is sparse."""

    ref: str
    ids: Ids | None
    use: Use


@dataclass(frozen=True, slots=True)
class Side:
    """A tensor beside the way. ``reduced`` says that a reduction lies between it and the way."""

    ref: str
    reduced: bool = False


@dataclass(slots=True)
class Passage:
    """How a result of a call is computed from the call's inputs, by index."""

    inputs: set[int] = field(default_factory=set)
    """Those on the way."""
    taps: set[int] = field(default_factory=set)
    """Those of them that scale the result by way of a reduction inside."""
    sides: set[tuple[int, bool]] = field(default_factory=set)
    """Those beside the way, and whether a reduction inside lies between."""
    born: bool = False
    """Whether a way ends inside."""


class Walk:
    """Collects the way from its starts. ``loose`` follows elements through reshapes too, whatever their shape."""

    def __init__(
        self,
        scope: Scope,
        shape: tuple[int, ...],
        ends: Collection[str],
        inside: Callable[[NodeDef, int, Ids | None], Passage] | None = None,
        *,
        loose: bool = False,
    ) -> None:
        """``ends`` are nodes that read variables: the way ends there. ``inside`` tells the way through a call."""
        self.scope = scope
        self.tensors: dict[str, Ids | None] = {}
        self.edges: dict[str, dict[Use, None]] = {}
        """Tensor -> the walked edges that take it."""
        self.inputs: dict[str, list[Step]] = {}
        """Tensor -> what it is computed from, element by element; nothing for one where the way ends."""
        self.slots: dict[str, list[Step]] = {}
        """A read of a slot -> what the slot's writes take."""
        self.sides: dict[Side, None] = {}
        self.tapped: dict[str, dict[Use, None]] = {}
        """Tensor -> calls that tap it."""
        self.born: set[str] = set()
        """Results of calls inside which a way ends."""
        self._inside = inside
        self._shape, self._ends, self._loose = shape, ends, loose

    def fits(self, ref: str, ids: Ids | None) -> bool:
        """Whether a tensor has the variable's shape, or that of rows of it."""
        found = self.scope.static_shape(ref)
        if found is None:
            return self._loose or ref in self.scope.arguments
        if self._loose:
            return bool(found)
        wanted = self._shape if ids is None else (-1, *self._shape[1:])
        return len(found) == len(wanted) and all(-1 in (a, b) or a == b for a, b in zip(found, wanted, strict=True))

    def follow(self, steps: Iterable[Step]) -> None:
        """Walks back from here."""
        pending = list(steps)
        while pending:
            step = pending.pop()
            ref = self.scope.canonical(step.ref)
            self.edges.setdefault(ref, {})[step.use] = None
            if ref in self.tensors:
                continue
            self.tensors[ref] = step.ids
            self.inputs[ref] = self._behind(ref, step.ids)
            pending += self.inputs[ref]

    def _behind(self, ref: str, ids: Ids | None) -> list[Step]:
        parsed = parse_ref(ref, in_function=self.scope.in_function)
        node = self.scope.nodes.get(parsed.node)
        if node is None or node.name in self._ends:
            return []
        if node.op in SEGMENT_SUMS:
            below = self._ids_below(node, ids)
            return [] if below is None else [Step(node.input[0], below, Use(node.name, 0))]
        if node.op in CALLS and self._inside is not None:
            return self._through(node, ref, ids, self._inside(node, parsed.index, ids))
        if node.op in REDUCTIONS:
            self.sides[Side(ref)] = None  # the variable is a scalar, and this may be what its gradient is scaled by
        if (node.op not in ELEMENTWISE and not (self._loose and node.op in SHAPING)) or self._goes_round(node):
            return []
        below = ids
        if ids is not None and node.op in ("Switch", "Merge"):
            below = self._ids_outside(node, ids)
            if below is None:
                return []
        found: list[Step] = []
        sides: list[str] = []
        for i, text in enumerate(self.scope.data_inputs(node)):
            if node.op in PARALLEL and i != parsed.index:
                continue
            if self.fits(text, ids) and DECIDES.get(node.op) != i:
                found.append(Step(text, below, Use(node.name, i)))
            else:
                sides.append(text)
        if found:
            self.sides |= dict.fromkeys(map(Side, sides))
        return found

    def _ids_outside(self, node: NodeDef, ids: Ids) -> Ids | None:
        """The ids of the rows that a Switch takes into a branch, given those inside."""
        switch = self.scope.nodes.get(producer(ids.ref))
        if switch is None or switch.op != "Switch" or switch.input[1] != node.input[1]:
            return None
        return Ids(switch.input[0], ids.dtype)

    def _goes_round(self, node: NodeDef) -> bool:
        """Whether a Merge is the head of a loop."""
        inputs = [self.scope.nodes.get(producer(text)) for text in node.input] if node.op == "Merge" else []
        return any(n is not None and n.op in LOOP_ENDS for n in inputs)

    def _through(self, node: NodeDef, ref: str, ids: Ids | None, passage: Passage) -> list[Step]:
        if passage.born:
            self.born.add(ref)
        for index in passage.taps:
            self.tapped.setdefault(self.scope.canonical(node.input[index]), {})[Use(node.name, index)] = None
        self.sides |= {Side(node.input[index], reduced): None for index, reduced in passage.sides}
        return [Step(node.input[index], ids, Use(node.name, index)) for index in passage.inputs]

    def _ids_below(self, node: NodeDef, ids: Ids | None) -> Ids | None:
        """The ids of the rows that a sum by rows takes, given those of the rows that it gives."""
        places = self._unwrapped(node.input[1])
        if ids is None:
            return Ids(node.input[1], attr_of(node, "Tindices").type)
        unique = self.scope.nodes.get(producer(places))
        if unique is None or unique.op not in UNIQUE or producer(self._unwrapped(ids.ref)) != unique.name:
            return None
        return Ids(unique.input[0], attr_of(unique, "T").type)

    def _unwrapped(self, ref: str) -> str:
        node = self.scope.nodes.get(producer(ref))
        while node is not None and node.op in ("Identity", "Cast"):
            ref = node.input[0]
            node = self.scope.nodes.get(producer(ref))
        return ref

    def in_order(self) -> list[str]:
        """The walked tensors, each after what it is computed from."""
        ordered: dict[str, None] = {}
        for first in self.tensors:
            stack = [first]
            while stack:
                ref = stack[-1]
                waiting = [c for s in self.inputs[ref] if (c := self.scope.canonical(s.ref)) not in ordered]
                if ref in ordered or not waiting:
                    ordered[stack.pop()] = None
                else:
                    stack.extend(waiting)
        return list(ordered)

    def reached(self, step: Step) -> set[str]:
        """The walked tensors behind a start, through slots too."""
        seen: set[str] = set()
        pending = [self.scope.canonical(step.ref)]
        while pending:
            ref = pending.pop()
            if ref not in seen:
                seen.add(ref)
                pending += [self.scope.canonical(s.ref) for s in (*self.inputs[ref], *self.slots.get(ref, ()))]
        return seen


@dataclass(slots=True)
class Taps:
    """Tapping edges by walked tensor, and the sides that come in from outside."""

    edges: dict[str, dict[Use, None]]
    arguments: dict[Side, None]


def find_taps(walk: Walk, sides: Iterable[Side]) -> Taps:
    """Follows the sides back through element-wise ops and reductions."""
    scope, found = walk.scope, Taps({}, {})
    pending = list(sides)
    seen: set[Side] = set()
    while pending:
        side = pending.pop()
        if side in seen:
            continue
        seen.add(side)
        parsed = parse_ref(side.ref, in_function=scope.in_function)
        node = scope.nodes.get(parsed.node)
        if node is None:
            found.arguments |= {side: None} if side.ref in scope.arguments else {}
            continue
        reduced = side.reduced or node.op in REDUCTIONS
        for i in _handed_on(node, len(scope.data_inputs(node)), parsed.index):
            ref = scope.canonical(node.input[i])
            if reduced and ref in walk.tensors:
                found.edges.setdefault(ref, {})[Use(node.name, i)] = None
            else:
                pending.append(Side(ref, reduced))
    return found


def _handed_on(node: NodeDef, count: int, output: int) -> Iterable[int]:
    """The inputs that an output of a node beside the way is computed from."""
    if node.op in REDUCTIONS | SEGMENT_SUMS:
        return (0,)
    if node.op in PARALLEL:
        return (output,)
    return range(count) if node.op in ELEMENTWISE | SHAPING else ()
