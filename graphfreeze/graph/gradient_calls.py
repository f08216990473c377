"""The way of a gradient through a function that takes no variable, which a trace does not look into."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Set
from dataclasses import dataclass

from graphfreeze.graph.gradient_ops import GIVEN
from graphfreeze.graph.gradient_walk import Ids, Passage, Step, Walk, find_taps
from graphfreeze.graph.ops import CALLS, CallKind
from graphfreeze.graph.refs import attr_of, parse_ref, producer
from graphfreeze.graph.scope import Scope, Use
from graphfreeze.savedmodel.protos import NodeDef

FOLLOWED = (CallKind.CALL, CallKind.BRANCH)


@dataclass(frozen=True, slots=True)
class Library:
    """The functions of a meta graph as scopes."""

    scope_of: Callable[[str], Scope]
    names: Container[str]


def called(node: NodeDef) -> Iterator[str]:
    """The functions that a call or a branch runs."""
    op = CALLS.get(node.op)
    for attribute in op.functions if op is not None and op.kind in FOLLOWED else ():
        value = attr_of(node, attribute)
        yield from (f.name for f in ([value.func] if value.WhichOneof("value") == "func" else value.list.func))


def passage(
    library: Library, shape: tuple[int, ...], node: NodeDef, output: int, ids: Ids | None, above: Set[str] = frozenset()
) -> Passage:
    """The way through one call; both branches of an If. ``above`` are functions that it stands in."""
    found = Passage()
    first = CALLS[node.op].skip
    functions = [name for name in called(node) if name in library.names and name not in above]
    if not functions:
        found.born = True  # a loop, or a function that calls itself

    def inside(inner: NodeDef, result: int, rows: Ids | None) -> Passage:
        return passage(library, shape, inner, result, rows, above | set(functions))

    for name in functions:
        scope = library.scope_of(name)
        walk = Walk(scope, shape, (), inside)
        result = scope.proto.signature.output_arg[output].name
        walk.follow([Step(scope.proto.ret[result], ids, Use("", result=result))])
        taps = find_taps(walk, walk.sides)
        tapped = {*taps.edges, *walk.tapped}
        needed = set[str]().union(*(walk.reached(Step(ref, None, Use(""))) for ref in tapped))
        for ref in walk.tensors:
            if ref not in scope.arguments:
                inner = scope.nodes[producer(ref)]
                found.born |= (not walk.inputs[ref] and inner.op not in GIVEN) or ref in walk.born
            elif walk.tensors[ref] == ids:
                position = scope.arguments.index(ref) + first
                found.inputs.add(position)
                found.taps |= {position} if ref in needed else set()
        found.sides |= {(scope.arguments.index(s.ref) + first, s.reduced) for s in taps.arguments}
        if found.inputs and CALLS[node.op].kind is CallKind.BRANCH:
            found.sides.add((0, False))
    return found


def taps_inside(library: Library, walk: Walk, seen: set[str] | None = None) -> bool:
    """Whether a loose walk, or one through the calls that it ends at, is tapped."""
    seen = set() if seen is None else seen
    if find_taps(walk, walk.sides).edges:
        return True
    for ref in walk.tensors:
        parsed = parse_ref(ref, in_function=walk.scope.in_function)
        for name in called(walk.scope.nodes[parsed.node]) if parsed.node in walk.scope.nodes else ():
            if name in seen or name not in library.names:
                continue
            seen.add(name)
            scope = library.scope_of(name)
            result = scope.proto.signature.output_arg[parsed.index].name
            deeper = Walk(scope, (), (), loose=True)
            deeper.follow([Step(scope.proto.ret[result], None, Use("", result=result))])
            if taps_inside(library, deeper, seen):
                return True
    return False
