"""Pass ``functions`` in a TF1 graph: merges in the main graph, where the old name gives the effective value.

A Session fetches tensors by name, so a node that reads a frozen variable hands its name on to the merge and goes on as
``NAME/graphfreeze/raw``. Whoever took it takes the effective value from then on, without being changed; only what
initialises, saves or restores keeps the raw value, and lookups, which are merged on their own rows. An op that takes a
ref variable itself takes the merge in its place.

Covered scopes: the main graph, frames and branches included; functions that it calls are pass ``functions``'s work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.access import Lookup
from graphfreeze.graph.attrs import ADDED, INPUT, RAW, REPLACES, bytes_attr, type_attr
from graphfreeze.graph.ops import Access
from graphfreeze.graph.refs import producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.uses import Read
from graphfreeze.lowering.emitter import GraphEmitter, control_inputs
from graphfreeze.lowering.full import merge_full
from graphfreeze.lowering.lookup import merge_lookup
from graphfreeze.lowering.merge import Merge, MergeContext
from graphfreeze.passes.functions import rewrite_functions
from graphfreeze.passes.reads import gather_again
from graphfreeze.passes.state import Work
from graphfreeze.passes.tf1_frames import Frames, is_led, repoint_inputs
from graphfreeze.savedmodel.protos import NodeDef

_READS = ("Identity", "ReadVariableOp")
_SHAPES = ("Shape", "ShapeN", "Size", "Rank")


def rewrite_graph(work: Work) -> None:
    """Merges every read of the main graph, then those of the functions that it calls."""
    _Reads(work).run()
    rewrite_functions(work)


class _Reads:
    def __init__(self, work: Work) -> None:
        self.work = work
        self.scope = Scope(work.meta.graph_def)
        self.names = work.names()
        self.frames = Frames(work.meta, self.scope, self.names)
        self.refs = {h for v in work.trace.variables if v.is_ref for h in v.handles}
        self.refs |= {s.handle for (i, _), s in work.stored.items() if work.trace.variables[i].is_ref}

    def run(self) -> None:
        """The whole pass."""
        main = self.work.trace.main
        for read in (*main.reads, *main.named):
            merge = self.work.merges.get(read.variable)
            if merge is None or not merge.merges_reads:
                continue
            if read.op in _READS:
                self._value(read, merge)
            elif read.access.path is Access.GATHER:
                for lookup in read.access.lookups:
                    self._lookup(read, merge, lookup)
            elif read.op in ("ResourceGather", "ResourceGatherNd"):
                self._gather(read, merge)
            elif read.access.path is Access.FULL:
                self._direct(read, merge)
        for node in self.scope.node_list:
            if node.name in self.work.setup:
                repoint_inputs(node, self.work.renamed)
        self.frames.write()

    def _value(self, read: Read, merge: Merge) -> None:
        """An op that gives the whole value: its name gives the effective one; lookups in it have their own merges."""
        node = self.scope.nodes[read.node]
        raw = self._set_aside(node)
        for lookup in read.access.lookups:
            taken = self.scope.nodes[lookup.node]
            taken.attr[INPUT].CopyFrom(bytes_attr(taken.input[0]))
            taken.input[0] = self._cast(merge, lookup, raw)
            self._lookup(read, merge, lookup)
        for use in self.scope.uses(read.node):
            if self.scope.nodes[use.node].op in _SHAPES and use.node not in self.work.setup:
                self.scope.nodes[use.node].input[use.index] = raw
        context = self._context(read, merge, node, read.node)
        self._take_name(context, node, merge_full(context, raw), merge.dtype)

    def _lookup(self, read: Read, merge: Merge, lookup: Lookup) -> None:
        node = self.scope.nodes[lookup.node]
        raw = self._set_aside(node)
        self.scope.nodes[raw] = node
        context = self._context(read, merge, node, lookup.node)
        dtype = self.scope.nodes[lookup.casts[-1]].attr["DstT"].type if lookup.casts else merge.dtype
        self._take_name(context, node, merge_lookup(context, self.scope, replace(lookup, node=raw)), dtype)

    def _cast(self, merge: Merge, lookup: Lookup, raw: str) -> str:
        """The casts between a variable and a lookup, of the raw value: those in the graph take the effective one."""
        emit = GraphEmitter(self.scope, self.names, lookup.node)
        for name in lookup.casts:
            attrs = self.scope.nodes[name].attr
            raw = emit.cast(raw, attrs["SrcT"].type, attrs["DstT"].type, attrs["Truncate"].b)
        self.frames.add(lookup.node, emit.added)
        return raw

    def _gather(self, read: Read, merge: Merge) -> None:
        """A lookup of a resource that is merged as a whole."""
        node = self.scope.nodes[read.node]
        self._set_aside(node)
        context = self._context(read, merge, node, read.node)
        base = context.emit.read(node.input[0], *merge.typed)
        value = gather_again(context.emit, node, merge_full(context, base), merge.dtype)
        self._take_name(context, node, value, merge.dtype)

    def _direct(self, read: Read, merge: Merge) -> None:
        """An op that takes a ref: the merge stands between the two."""
        node = self.scope.nodes[read.node]
        for use in read.access.uses:
            handle = node.input[use.index]
            context = self._context(read, merge, node, read.node, handle)
            merged = merge_full(context, context.emit.read(handle, *merge.typed))
            context.emit.node_of(merged).attr[REPLACES].CopyFrom(bytes_attr(handle))
            node.input[use.index] = merged
            self._list(context, read.node)

    def _set_aside(self, node: NodeDef) -> str:
        """Frees the name of a node; returns its new one."""
        old, raw = node.name, self.names.fresh(f"{node.name}/graphfreeze/raw")
        node.name = raw
        node.attr[RAW].CopyFrom(bytes_attr(old))
        self.work.renamed[old] = raw
        self.frames.add(old, [raw])
        return raw

    def _take_name(self, context: MergeContext, node: NodeDef, merged: str, dtype: int) -> None:
        """The effective value under the old name. The node is an Identity, whatever the name stood for."""
        name = node.attr[RAW].s.decode()
        last = self.scope.node_list.add(name=name, op="Identity", input=[merged])
        last.attr["T"].CopyFrom(type_attr(dtype))
        last.attr[ADDED].CopyFrom(bytes_attr("value"))
        last.attr[REPLACES].CopyFrom(bytes_attr(node.name))
        if "_output_shapes" in node.attr:
            last.attr["_output_shapes"].CopyFrom(node.attr["_output_shapes"])
        self._list(context, name)

    def _list(self, context: MergeContext, beside: str) -> None:
        emit = context.emit
        assert isinstance(emit, GraphEmitter)
        self.frames.add(beside, [n for n in emit.added if n != beside])
        for added in self.scope.node_list[emit.first :]:
            added.device = self.scope.nodes[beside].device

    def _context(self, read: Read, merge: Merge, node: NodeDef, anchor: str, handle: str | None = None) -> MergeContext:
        """Handles of the variable and its storages where the read stands."""
        # A lookup in a value stands behind the op that gives the value.
        handle = self.scope.nodes[read.node].input[0] if handle is None else handle
        way = self.frames.way(handle)
        root = producer(way[0].input[0] if way else handle)
        if root not in self.work.trace.variables[read.variable].handles:
            self._refuse(merge, read, root)
        inside = is_led(way) or self.frames.is_inside(anchor)
        values: set[str] = set()
        handles = {"base": handle}
        if root in self.refs:
            values.add(handle)
        for role in merge.roles:
            stored = self.work.stored[read.variable, role].handle
            handles[role] = self.frames.lead(stored, handle, by_value=False)
            if stored in self.refs:
                values.add(handles[role])
        for key, constant in self.work.geometry[read.variable].items():
            handles[f"mask:{key}"] = self.frames.lead(constant, handle, by_value=True)
            values.add(handles[f"mask:{key}"])
        tied = self._tied(node, anchor) if inside else None
        emit = GraphEmitter(self.scope, self.names, anchor, control_inputs(node), values=values, frame=tied)
        return MergeContext(merge, emit, handles)

    def _tied(self, node: NodeDef, anchor: str) -> str:
        """A node of the frame that runs before the merge: the raw read, or what feeds an op that takes a ref."""
        return node.name if node.name != anchor else producer(_first_data(node.input))

    def _refuse(self, merge: Merge, read: Read, root: str) -> None:
        raise UnsupportedModelError(
            f"Cannot freeze '{merge.plan.name}': node '{read.node}' ({read.op}) in the main graph takes it from "
            f"'{root}' ({self.scope.nodes[root].op}), which hands on one of several variables or rounds of a loop. "
            "Leave the variable out"
        )


def _first_data(inputs: Sequence[str]) -> str:
    return next(text for text in inputs if not text.startswith("^"))
