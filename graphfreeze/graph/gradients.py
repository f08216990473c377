"""Finds where the gradient of a variable goes into a norm, so that frozen elements can be kept out of it.

A model that trains itself may clip by a norm over all gradients, or skip a step whose gradients are not finite. Frozen
elements must not count there, which no guard on the writes can see to. No names are looked at: from each write the way
of the gradient is walked back (``gradient_walk``), through calls and branches and through slots; a walked tensor that
scales the update by way of a reduction is a *source*. One below another stands for both.

What is computed from the variable and from data alone, element by element, is forward computation and no gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from graphfreeze.graph.gradient_calls import taps_inside
from graphfreeze.graph.gradient_ops import GIVEN, KEEPS_ZERO, SEGMENT_SUMS, input_dtype
from graphfreeze.graph.gradient_walk import Walk, find_taps
from graphfreeze.graph.gradient_ways import Origin, Place, Ways
from graphfreeze.graph.gradient_writes import write_steps
from graphfreeze.graph.refs import producer
from graphfreeze.graph.scope import Scope, Use
from graphfreeze.graph.uses import Body, Source, Write
from graphfreeze.savedmodel.protos import NodeDef


def find_gradients(ways: Ways) -> None:
    """Notes in every body its sources, and the writes for which none was found."""
    ways.spread()
    settler = _Settler(ways)
    for body in reversed(ways.bodies.values()):
        settler.settle(body)
    settler.note_unmasked()


@dataclass(slots=True)
class _Found:
    """A finished walk: what taps each tensor, which tensors are gradients, and which get a mask."""

    walk: Walk
    taps: dict[str, dict[Use, None]]
    gradients: set[str] = field(default_factory=set)
    masked: list[str] = field(default_factory=list)


class _Settler:
    """Decides which tensors are masked. Callers come first, because they know whether an argument is a gradient."""

    def __init__(self, ways: Ways) -> None:
        self.ways = ways
        self.gradient_arguments: dict[Place, set[str]] = {}

    def settle(self, body: Body) -> None:
        """Notes the sources of one body."""
        places = [place for place in self.ways.starts if place[0] == body.key]
        found: dict[int, _Found] = {}
        for place in places:
            walk = self.ways.walk(place)
            tapping = find_taps(walk, walk.sides).edges
            found[place[1]] = _Found(
                walk, {r: tapping.get(r, {}) | walk.tapped.get(r, {}) for r in {**tapping, **walk.tapped}}
            )
        # An edge on the way of two variables is left alone: the mask of one must not hold the other.
        edges = Counter(use for f in found.values() for uses in f.walk.edges.values() for use in uses)
        shared = {use for use, count in edges.items() if count > 1}
        for one in found.values():
            # What lies on the way of another variable only is that one's.
            one.taps = {
                ref: own
                for ref, uses in one.taps.items()
                if (own := {use: None for use in uses if use not in edges or use in one.walk.edges[ref]})
            }
        for variable, one in found.items():
            self._judge(body, variable, one, shared)
            self._tell_callees(body, variable, one)
        own_taps = _share_out(self.ways.scope_of(body.key.function), found)
        for variable, one in found.items():
            for ref in one.masked:
                taps = own_taps[variable, ref]
                if taps is not None:
                    body.sources.append(self._source((body.key, variable), one.walk, ref, taps, shared))

    def _judge(self, body: Body, variable: int, found: _Found, shared: set[Use]) -> None:
        """Which walked tensors are gradients, and which of them need a mask: those not computed from masked ones."""
        walk, clean = found.walk, set[str]()
        masked: set[str] = set()
        for ref in walk.in_order():
            inputs = [(walk.scope.canonical(step.ref), step.use) for step in walk.inputs[ref]]
            node = walk.scope.nodes.get(producer(ref))
            if (
                ref in walk.born
                or any(i in found.gradients for i, _ in inputs)
                or (not inputs and self._born(body, variable, ref, node))
            ):
                found.gradients.add(ref)
            keeps = node is not None and node.op in KEEPS_ZERO | SEGMENT_SUMS and bool(inputs)
            if keeps and all(i in clean and not (i in masked and use in shared) for i, use in inputs):
                clean.add(ref)
            elif ref in found.taps and ref in found.gradients:
                clean.add(ref)
                masked.add(ref)
                found.masked.append(ref)

    def _born(self, body: Body, variable: int, ref: str, node: NodeDef | None) -> bool:
        """Whether a tensor at which the way ends is a gradient, and not data or what a variable holds."""
        if node is None:
            return ref in self.gradient_arguments.get((body.key, variable), ())
        read = next((r.variable for r in body.reads if r.node == node.name), None)
        return node.op not in GIVEN if read is None else self.ways.may_be_slot(read, variable)

    def _tell_callees(self, body: Body, variable: int, found: _Found) -> None:
        scope = found.walk.scope
        for call in body.calls:
            inputs = scope.data_inputs(scope.nodes[call.node])
            for callee in call.callees:
                arguments = self.ways.scope_of(callee.key.function).arguments
                told = self.gradient_arguments.setdefault((callee.key, variable), set())
                for index, text in enumerate(inputs[call.start :]):
                    position = index + call.offset
                    if position < len(arguments) and scope.canonical(text) in found.gradients:
                        told.add(arguments[position])

    def _source(self, place: Place, walk: Walk, ref: str, taps: Sequence[Use], shared: set[Use]) -> Source:
        uses = tuple(dict.fromkeys([*taps, *(use for use in walk.edges[ref] if use not in shared)]))
        ids = walk.tensors[ref]
        steps = self.ways.starts[place].steps
        writes = frozenset[Origin]().union(*(origins for step, origins in steps.items() if ref in walk.reached(step)))
        return Source(
            place[1], ref, _dtype(walk.scope, uses[0]), uses, None if ids is None else (ids.ref, ids.dtype), writes
        )

    def note_unmasked(self) -> None:
        """Notes the writes whose gradient goes into a norm by a way that is not understood."""
        masked = {(s.variable, origin) for b in self.ways.bodies.values() for s in b.sources for origin in s.writes}
        for body in self.ways.bodies.values():
            for write in body.writes:
                if write.index or not self.ways.trains(write.variable):
                    continue
                if (write.variable, (body.key, write.node)) not in masked and self._has_norm(body, write):
                    body.unmasked.add((write.variable, write.node))

    def _has_norm(self, body: Body, write: Write) -> bool:
        walk = self.ways.empty(body, write.variable, loose=True)
        steps, sides = write_steps(walk.scope, walk, write, self.ways.handles(body))
        walk.sides |= dict.fromkeys(sides)
        walk.follow(steps)
        return taps_inside(self.ways.library, walk)


def _share_out(scope: Scope, found: Mapping[int, _Found]) -> dict[tuple[int, str], Sequence[Use] | None]:
    """(variable, tensor) -> its taps. One tensor may be the gradient of several variables (``loss(a + b)``).

    Each variable has its own norm of it then, in the order in which nodes were made; None where they do not come out.
    """
    order = {node.name: i for i, node in enumerate(scope.node_list)}
    result: dict[tuple[int, str], Sequence[Use] | None] = {}
    claims: dict[tuple[str, Use], list[int]] = {}
    for variable, one in found.items():
        for ref, uses in one.taps.items():
            for use in uses if ref in one.gradients else ():
                claims.setdefault((ref, use), []).append(variable)
    groups: dict[tuple[str, str, tuple[int, ...]], dict[str, list[Use]]] = {}
    for (ref, use), claimants in claims.items():
        group = groups.setdefault((ref, scope.nodes[use.node].op, tuple(claimants)), {})
        group.setdefault(use.node, []).append(use)
    for (ref, _, sharing), by_node in groups.items():
        nodes = sorted(by_node, key=order.__getitem__)
        for n, variable in enumerate(sharing):
            own = [use for node in nodes[n :: len(sharing)] for use in by_node[node]]
            before = result.get((variable, ref), ())
            uneven = len(nodes) % len(sharing) or before is None
            result[variable, ref] = None if uneven else [*(before or ()), *own]
    return result


def _dtype(scope: Scope, use: Use) -> int:
    if use.result is None:
        return input_dtype(scope.nodes[use.node], use.index)
    return int(next(o.type for o in scope.proto.signature.output_arg if o.name == use.result))
