"""Looks for norms of gradients that still count frozen elements, edge by edge.

Running both models does not show all of them: a check that gradients are finite counts a frozen element only where that
one's gradient is not finite and all others are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from graphfreeze.graph.refs import producer
from graphfreeze.graph.scope import Scope, Use
from graphfreeze.graph.uses import Body, Key, Source, Trace
from graphfreeze.lowering.holding import Problem
from graphfreeze.savedmodel.protos import MetaGraphDef

CHECK = "norms"


@dataclass(frozen=True, slots=True)
class Traced:
    """A meta graph and its trace."""

    meta: MetaGraphDef
    trace: Trace

    def scopes(self) -> dict[str, Scope]:
        """The functions by name."""
        return {f.signature.name: Scope(f) for f in self.meta.graph_def.library.function}


def unmasked_gradients(
    source: Traced, held: Traced, frozen: Collection[int], functions: Collection[tuple[str, str]]
) -> Iterator[Problem]:
    """Every edge that took a gradient of a ``frozen`` variable to a norm in the source, and takes the same one now.

    ``functions`` are pairs of concrete functions, the source's first; what they call is looked at too. Nodes of the
    source keep their names in the rewritten model.
    """
    if not any(s.variable in frozen for body in source.trace.bodies.values() for s in body.sources):
        return
    before, after = source.scopes(), held.scopes()
    for body, other in _pairs(source.trace, held.trace, functions):
        scope, now = before[body.key.function], after[other.key.function]
        for one in (s for s in body.sources if s.variable in frozen):
            name = source.trace.variables[one.variable].name
            for use in one.uses:
                if _is_raw(scope, now, one, use):
                    where = f"'{use.node}'" if use.result is None else f"result '{use.result}'"
                    words = f"takes frozen elements of the gradient of '{name}' at {where}"
                    yield Problem(CHECK, body.key.function, words)


def _pairs(source: Trace, held: Trace, functions: Collection[tuple[str, str]]) -> Iterator[tuple[Body, Body]]:
    pending = [(source.roots[a], held.roots[b]) for a, b in functions if a in source.roots and b in held.roots]
    seen: set[tuple[Key, Key]] = set()
    while pending:
        pair = pending.pop()
        if pair in seen:
            continue
        seen.add(pair)
        body, other = source.bodies[pair[0]], held.bodies[pair[1]]
        yield body, other
        calls = {call.node: call for call in other.calls}
        for call in (c for c in body.calls if c.node in calls):
            pending += [(a.key, b.key) for a, b in zip(call.callees, calls[call.node].callees, strict=False)]


def _is_raw(scope: Scope, now: Scope, source: Source, use: Use) -> bool:
    """Whether the place takes what it took, from the node that gave it."""
    if use.result is not None:
        was, found = scope.proto.ret[use.result], now.proto.ret.get(use.result, "")
    else:
        node, like = scope.nodes[use.node], now.nodes.get(use.node)
        if like is None or like.op != node.op or use.index >= len(like.input):
            return False
        was, found = node.input[use.index], like.input[use.index]
    if scope.lasting(was) != now.lasting(found):
        return False
    # A guard may have moved a node to another name, with another one in its place.
    name = producer(source.tensor)
    return name not in scope.nodes or (name in now.nodes and now.nodes[name].op == scope.nodes[name].op)
