"""Which integers a function takes: below the size of the table that they index, or the number of branches.

An input of a model that is an id must lie within its table, and nothing but the graph says which inputs are ids. So
every integer argument is followed forward to the ops that use it as an index. What cannot be told has no bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from graphfreeze.graph.access import constant_int
from graphfreeze.graph.attrs import tensor_value
from graphfreeze.graph.ops import CALLS, CallKind
from graphfreeze.graph.refs import attr_of, parse_ref
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.uses import Trace
from graphfreeze.savedmodel.protos import FunctionDef, MetaGraphDef, NodeDef

Bounds = tuple[int | None, ...]
Sizes = tuple[tuple[int, tuple[int, ...]], ...]
"""(argument position, shape of the variable whose handle it is)."""

_THROUGH = frozenset(
    {
        *(
            "Identity",
            "IdentityN",
            "StopGradient",
            "Cast",
            "Reshape",
            "ExpandDims",
            "Squeeze",
            "Transpose",
            "ReverseV2",
        ),
        *("Pack", "Unpack", "ConcatV2", "Split", "SplitV", "Slice", "StridedSlice", "Tile", "BroadcastTo"),
        *("Gather", "GatherV2", "GatherNd", "Unique", "UniqueV2", "Select", "SelectV2", "Minimum", "Maximum"),
        *("Add", "AddV2", "Sub", "TensorListFromTensor", "TensorListGetItem", "TensorListStack"),
    }
)
"""Ops that hand integers on, moved about or shifted a little."""


def integer_bounds(meta: MetaGraphDef, trace: Trace) -> dict[str, Bounds]:
    """For each concrete function the bound of every argument that is not a capture; None where there is none."""
    finder = _Finder(meta)
    found: dict[str, Bounds] = {}
    for name, key in trace.roots.items():
        sizes = tuple((slot, s) for slot, v in key.binding if (s := trace.variables[v].shape) is not None)
        captures = len(meta.object_graph_def.concrete_functions[name].bound_inputs)
        bounds = finder.bounds(name, sizes)
        found[name] = bounds[: len(bounds) - captures]
    return found


class _Finder:
    def __init__(self, meta: MetaGraphDef) -> None:
        self.functions: dict[str, FunctionDef] = {f.signature.name: f for f in meta.graph_def.library.function}
        self.done: dict[tuple[str, Sizes], Bounds] = {}
        self.open: set[str] = set()

    def bounds(self, name: str, sizes: Sizes) -> Bounds:
        if name not in self.functions or name in self.open:
            return ()
        if (name, sizes) not in self.done:
            self.open.add(name)
            body = _Body(self, Scope(self.functions[name]), dict(sizes))
            self.done[name, sizes] = tuple(body.bound(argument) for argument in body.scope.arguments)
            self.open.discard(name)
        return self.done[name, sizes]


class _Body:
    def __init__(self, finder: _Finder, scope: Scope, sizes: dict[int, tuple[int, ...]]) -> None:
        self.finder, self.scope = finder, scope
        self.handles = {scope.arguments[slot]: size for slot, size in sizes.items()}
        self.done: dict[str, int | None] = {}
        self.given: dict[str, list[str]] = defaultdict(list)
        for node in scope.node_list:
            for text in scope.data_inputs(node):
                ref = scope.canonical(text)
                parsed = parse_ref(ref, in_function=True)
                if not parsed.is_argument and ref not in self.given[parsed.node]:
                    self.given[parsed.node].append(ref)

    def bound(self, ref: str) -> int | None:
        """The smallest bound that any use of a tensor sets."""
        if ref not in self.done:
            self.done[ref] = None
            uses = (u for u in self.scope.uses(ref) if u.result is None)
            found = [b for u in uses for b in self._of_use(self.scope.nodes[u.node], u.index) if b is not None]
            self.done[ref] = min(found, default=None)
        return self.done[ref]

    def _of_use(self, node: NodeDef, index: int) -> Iterator[int | None]:
        texts = self.scope.data_inputs(node)
        if index == 1 and node.op in ("GatherV2", "Gather", "GatherNd", "ResourceGather", "ResourceGatherNd"):
            axis = (constant_int(self.scope, texts[2]) or 0) if node.op == "GatherV2" else 0
            shape = self._shape(texts[0])
            yield shape[axis] if shape and -len(shape) <= axis < len(shape) and shape[axis] >= 0 else None
        elif index == 0 and node.op == "OneHot":
            yield constant_int(self.scope, texts[1])
        elif index == 1 and node.op.startswith("UnsortedSegment"):
            yield self._constant(texts[2])
        elif node.op in CALLS:
            yield from self._of_call(node, index, texts)
        elif node.op in ("SparseReorder", "SparseFillEmptyRows"):
            if index == 1:
                yield from (self.bound(ref) for ref in self.given[node.name] if ":output_values:" in ref)
        elif node.op in _THROUGH:
            yield from (self.bound(ref) for ref in self.given[node.name])

    def _of_call(self, node: NodeDef, index: int, texts: list[str]) -> Iterator[int | None]:
        op = CALLS[node.op]
        names = [f.name for a in op.functions for f in (attr_of(node, a).list.func or [attr_of(node, a).func])]
        if op.kind is CallKind.DATA:
            return
        if index < op.skip:
            yield len(names) if node.op.endswith("Case") else None
            return
        handles = {self.scope.canonical(t): i - op.skip for i, t in enumerate(texts)}
        sizes = tuple(sorted((i, self.handles[ref]) for ref, i in handles.items() if ref in self.handles))
        for name in names:
            bounds = self.finder.bounds(name, sizes)
            yield bounds[index - op.skip] if index - op.skip < len(bounds) else None
        # What a call gives back may be the ids that it took.
        if op.kind is CallKind.LOOP:
            yield from (self.bound(ref) for ref in self.given[node.name] if ref.endswith(f":{index}"))

    def _shape(self, text: str) -> tuple[int, ...] | None:
        """The shape of a table: of the variable that a handle or a read stands for, else as noted in the graph."""
        ref = self.scope.canonical(text)
        if ref in self.handles:
            return self.handles[ref]
        node = self.scope.nodes.get(parse_ref(ref, in_function=True).node)
        if node is not None and node.op in ("ReadVariableOp", "Identity", "Cast"):
            return self._shape(node.input[0])
        return self.scope.static_shape(ref)

    def _constant(self, text: str) -> int | None:
        node = self.scope.nodes.get(parse_ref(text, in_function=True).node)
        if node is None or node.op != "Const":
            return None
        values = tensor_value(node.attr["value"].tensor)
        return int(values.reshape(-1)[0]) if values.size else None
