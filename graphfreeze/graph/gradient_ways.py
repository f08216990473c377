"""Follows gradients from the writes of variables through all scopes that they come through.

A walk ends where a scope does: at an argument it goes on in the callers, at the result of a call in what is called.
What a slot holds comes from the slot's writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from graphfreeze.graph.gradient_calls import FOLLOWED, Library, passage
from graphfreeze.graph.gradient_walk import Ids, Passage, Side, Step, Walk, find_taps
from graphfreeze.graph.gradient_writes import write_steps
from graphfreeze.graph.ops import READS, CallKind, use_of
from graphfreeze.graph.ops import Use as UseOf
from graphfreeze.graph.refs import parse_ref, producer
from graphfreeze.graph.scope import Scope, Use
from graphfreeze.graph.tf1 import GIVES_REF
from graphfreeze.graph.uses import Body, Call, Key, Write
from graphfreeze.graph.variables import Variable, is_float
from graphfreeze.savedmodel.protos import FunctionDef, NodeDef

Origin = tuple[Key, str]
"""A write: its scope and node."""
Place = tuple[Key, int]
"""(scope, variable)."""


@dataclass(slots=True)
class Starts:
    """Where the walk of one variable starts in one scope."""

    steps: dict[Step, set[Origin]] = field(default_factory=dict)
    sides: dict[Side, None] = field(default_factory=dict)


class Ways:
    """The starts of every walk, and the walks."""

    def __init__(
        self,
        variables: Sequence[Variable],
        bodies: Sequence[Body],
        scope_of: Callable[[str], Scope],
        functions: Mapping[str, FunctionDef],
    ) -> None:
        self.variables, self.scope_of, self.functions = variables, scope_of, functions
        self.library = Library(scope_of, functions)
        self.bodies = {body.key: body for body in bodies}
        self.starts: dict[Place, Starts] = {}
        self._callers: dict[Key, list[tuple[Body, Call]]] = {}
        for body in bodies:
            for call in body.calls:
                if call.op.kind in FOLLOWED:
                    for callee in call.callees:
                        self._callers.setdefault(callee.key, []).append((body, call))
        self._pending: dict[Place, None] = {}

    def spread(self) -> None:
        """Starts at every write of a variable that trains, and walks into callers and callees until nothing is new."""
        for body in self.bodies.values():
            for write in body.writes:
                if write.index == 0 and self.trains(write.variable):
                    walk = self.empty(body, write.variable)
                    steps, sides = write_steps(walk.scope, walk, write, self.handles(body))
                    for step in steps:
                        self._add((body.key, write.variable), step, {(body.key, write.node)})
                    self._beside((body.key, write.variable), sides)
        while self._pending:
            place = next(iter(self._pending))
            del self._pending[place]
            self._spread_from(place)

    def trains(self, variable: int) -> bool:
        """Whether a variable has a gradient at all."""
        found = self.variables[variable]
        return found.trainable and not found.is_state and is_float(found.dtype) and found.shape is not None

    def empty(self, body: Body, variable: int, *, loose: bool = False) -> Walk:
        """A walk that has not begun."""
        # An op that takes a ref variable itself is on the way as it would be with a read between.
        ends = {r.node for r in body.reads if r.op in READS or r.op == "Identity"}
        shape = self.variables[variable].shape or ()
        traced = {call.node for call in body.calls}

        def inside(node: NodeDef, output: int, ids: Ids | None) -> Passage:
            return Passage() if node.name in traced else passage(self.library, shape, node, output, ids)

        return Walk(self.scope_of(body.key.function), shape, ends, None if loose else inside, loose=loose)

    def handles(self, body: Body) -> set[str]:
        """The edges of a body that carry variables."""
        scope = self.scope_of(body.key.function)
        return {scope.arguments[i] for i, _ in body.key.binding if scope.in_function} | body.handles

    def _add(self, place: Place, step: Step, origins: set[Origin]) -> None:
        known = self.starts.setdefault(place, Starts()).steps.setdefault(step, set())
        if not origins <= known:
            known |= origins
            self._pending[place] = None

    def _beside(self, place: Place, sides: Sequence[Side]) -> None:
        known = self.starts.setdefault(place, Starts()).sides
        if any(side not in known for side in sides):
            known |= dict.fromkeys(sides)
            self._pending[place] = None

    def _spread_from(self, place: Place) -> None:
        body, starts = self.bodies[place[0]], self.starts[place]
        walk = self.walk(place)
        arguments = walk.scope.arguments
        for step, origins in list(starts.steps.items()):
            for ref in walk.reached(step):
                if ref in arguments:
                    self._into_callers(place, walk, ref, origins)
                elif not walk.inputs[ref]:
                    self._into_callees(place, body, ref, walk.tensors[ref], origins)
        for side in find_taps(walk, walk.sides).arguments:
            for caller, call in self._callers.get(place[0], ()):
                text = self._passed(caller, call, arguments.index(side.ref))[1]
                self._beside((caller.key, place[1]), [Side(text, side.reduced)])

    def _into_callers(self, place: Place, walk: Walk, argument: str, origins: set[Origin]) -> None:
        ids, arguments = walk.tensors[argument], walk.scope.arguments
        for caller, call in self._callers.get(place[0], ()):
            above = (caller.key, place[1])
            index, text = self._passed(caller, call, arguments.index(argument))
            passed = None
            if ids is not None:
                if ids.ref not in arguments:
                    continue
                passed = Ids(self._passed(caller, call, arguments.index(ids.ref))[1], ids.dtype)
            self._add(above, Step(text, passed, Use(call.node, index)), origins)
            if call.op.kind is CallKind.BRANCH:
                self._beside(above, [Side(self.scope_of(caller.key.function).nodes[call.node].input[0])])

    def _passed(self, caller: Body, call: Call, argument: int) -> tuple[int, str]:
        """The input of a call that becomes an argument: its index and edge."""
        index = argument - call.offset + call.start
        return index, self.scope_of(caller.key.function).nodes[call.node].input[index]

    def _into_callees(self, place: Place, body: Body, ref: str, ids: Ids | None, origins: set[Origin]) -> None:
        parsed = parse_ref(ref, in_function=self.scope_of(body.key.function).in_function)
        for call in body.calls:
            if call.node != parsed.node or call.op.kind not in FOLLOWED or ids is not None:
                continue
            for callee in call.callees:
                function = self.functions[callee.key.function]
                result = function.signature.output_arg[parsed.index].name
                step = Step(function.ret[result], None, Use("", result=result))
                self._add((callee.key, place[1]), step, origins)

    def walk(self, place: Place) -> Walk:
        """The walk of a variable in a scope, through the slots that are written there."""
        body, starts = self.bodies[place[0]], self.starts[place]
        walk = self.empty(body, place[1])
        walk.sides |= starts.sides
        walk.follow(starts.steps)
        slots = self._slots(body, place[1])
        while new := [t for t in walk.tensors if producer(t) in slots and t not in walk.slots]:
            for ref in new:
                walk.slots[ref] = []
                for write in slots[producer(ref)]:
                    steps, sides = write_steps(walk.scope, walk, write, self.handles(body))
                    walk.slots[ref] += steps
                    walk.sides |= dict.fromkeys(sides)
                walk.follow(walk.slots[ref])
        return walk

    def _slots(self, body: Body, variable: int) -> dict[str, list[Write]]:
        """Reading node -> the writes of what it reads, where that may be a slot of the variable."""
        found = {
            read.node: [w for w in body.writes if w.variable == read.variable]
            for read in body.reads
            if self.may_be_slot(read.variable, variable)
        }
        # A write of a ref gives out what it has written.
        found |= {
            write.node: [w for w in body.writes if w.variable == write.variable]
            for write in body.writes
            if GIVES_REF.fullmatch(write.op) and write.index == 0 and self.may_be_slot(write.variable, variable)
        }
        # Keras leaves two handles of a slot in the main graph, and signatures take the one that is not in the saver.
        scope = self.scope_of(body.key.function)
        unknown = set(scope.arguments) - self.handles(body)
        writes: dict[str, list[Write]] = {}
        for node in scope.node_list:
            if node.input and node.input[0] in unknown and use_of(node.op) is UseOf.WRITE:
                writes.setdefault(node.input[0], []).append(Write(-1, -1, node.name, node.op))
        for node in scope.node_list:
            if node.op == "ReadVariableOp" and node.input[0] in unknown:
                found[node.name] = writes.get(node.input[0], [])
        return found

    def may_be_slot(self, candidate: int, variable: int) -> bool:
        """Whether one variable may hold an optimizer's statistics of another, or its gradients added up."""
        slot, of = self.variables[candidate], self.variables[variable]
        return is_float(slot.dtype) and not slot.trainable and slot.shape == of.shape
