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
from graphfreeze.passes.tf1_frames import repoint_inputs
from graphfreeze.passes.tf1_place import Places
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
        self.places = Places(work, self.scope, self.names)
        self.frames = self.places.frames

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
            self.places.list_added(context, read.node)

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
        self.places.list_added(context, name)

    def _context(self, read: Read, merge: Merge, node: NodeDef, anchor: str, handle: str | None = None) -> MergeContext:
        """Handles of the variable and its storages where the read stands."""
        return self.places.context(
            read.variable,
            merge,
            # A lookup in a value stands behind the op that gives the value.
            self.scope.nodes[read.node].input[0] if handle is None else handle,
            anchor,
            controls=control_inputs(node),
            tie=self._tied(node, anchor),
            roles=merge.roles,
            user=(read.node, read.op),
        )

    def _tied(self, node: NodeDef, anchor: str) -> str:
        """A node of the frame that runs before the merge: the raw read, or what feeds an op that takes a ref."""
        return node.name if node.name != anchor else producer(_first_data(node.input))


def _first_data(inputs: Sequence[str]) -> str:
    return next(text for text in inputs if not text.startswith("^"))
