"""What of a model can be called: the concrete functions of its objects, and its signatures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from graphfreeze.graph.ops import Access, CallKind
from graphfreeze.graph.uses import Body, Key, Trace
from graphfreeze.savedmodel import NodePath, node_paths
from graphfreeze.savedmodel.protos import MetaGraphDef

SIGNATURES = "signatures"


@dataclass(frozen=True, slots=True)
class Entry:
    """One concrete function, by what leads to it from the root."""

    label: str
    """``block/__call__[0]``, or ``signature serving_default``."""
    place: NodePath
    number: int | None
    """Which concrete function of the object; None where the object is one itself."""
    function: str
    """Its name in the library."""

    @property
    def is_signature(self) -> bool:
        """Whether it is a signature."""
        return len(self.place) == 2 and self.place[0] == SIGNATURES and self.number is None


def entries(meta: MetaGraphDef, without: Collection[str] = ()) -> tuple[Entry, ...]:
    """All of them in the order of the object graph; children of the root that are in ``without`` are left out."""
    return tuple(e for e in _entries(meta) if not (e.place and e.place[0] in without))


def _entries(meta: MetaGraphDef) -> Iterator[Entry]:
    graph = meta.object_graph_def
    # TensorFlow runs the functions of a resource by itself; below a function stand its own concrete functions again.
    passed = {c.node_id for n in graph.nodes if n.WhichOneof("kind") in ("resource", "function") for c in n.children}
    for number, place in node_paths(graph).items():
        if number in passed:
            continue
        node, path = graph.nodes[number], "/".join(place)
        if node.WhichOneof("kind") == "bare_concrete_function":
            signature = len(place) == 2 and place[0] == SIGNATURES
            label = f"signature {place[1]}" if signature else path
            yield Entry(label, place, None, node.bare_concrete_function.concrete_function_name)
        for i, name in enumerate(node.function.concrete_functions):
            yield Entry(f"{path}[{i}]", place, i, name)


def uses_by_variable(trace: Trace, function: str) -> Counter[int]:
    """How often a function uses the value of each variable, by its number; twice where a loop does."""
    found: Counter[int] = Counter()
    if function in trace.roots:
        _count(trace, trace.roots[function], 1, found)
    return found


def written_variables(trace: Trace, function: str) -> tuple[int, ...]:
    """The numbers of the variables that a function changes, in order."""
    return tuple(sorted({write.variable for body in reached_bodies(trace, function) for write in body.writes}))


def reached_bodies(trace: Trace, function: str) -> Iterator[Body]:
    """The body of a concrete function, and those of all that it calls."""
    pending = [trace.roots[function]] if function in trace.roots else []
    seen: set[Key] = set()
    while pending:
        key = pending.pop()
        if key in seen:
            continue
        seen.add(key)
        yield trace.bodies[key]
        pending += [callee.key for call in trace.bodies[key].calls for callee in call.callees]


def _count(trace: Trace, key: Key, times: int, found: Counter[int]) -> None:
    body = trace.bodies[key]
    for read in body.reads:
        if read.access.path is not Access.SHAPE:
            found[read.variable] += times * max(len(read.access.lookups), len(read.access.uses), 1)
    for call in body.calls:
        for callee in call.callees:
            _count(trace, callee.key, times * (2 if call.op.kind is CallKind.LOOP else 1), found)
