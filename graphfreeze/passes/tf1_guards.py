"""Pass ``guards`` in a TF1 graph: writes of the main graph keep off frozen elements, and gradients are masked.

As in functions (``guards``, ``gradients``), with what is TF1's own:

- Nothing but its inputs orders a write. Where another one of the same variable may run beside it, or the rounds of a
  loop beside each other, what is put back is read once for all of them, before the first, and nothing but frozen
  elements is written.
- A write of a ref gives the ref out. Whoever takes it takes it from the op that puts frozen elements back.
- A session runs what is asked for and no more: ops with effects that only a gradient led to, such as the updates of
  batch statistics, are tied to what stands in the place of the variable's update.

Covered scopes: the main graph, frames and branches included; functions that it calls are pass ``functions``'s work.
"""

from __future__ import annotations

from graphfreeze.graph.attrs import type_attr
from graphfreeze.graph.refs import attr_of, is_control, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.tf1 import GIVES_REF, fetched_nodes
from graphfreeze.graph.uses import Source, Write
from graphfreeze.lowering.emitter import GraphEmitter, control_inputs
from graphfreeze.lowering.guard import WriteGuard
from graphfreeze.lowering.merge import Merge, MergeContext
from graphfreeze.passes.gradients import mask_source
from graphfreeze.passes.guards import set_inside, silence, sorted_writes
from graphfreeze.passes.state import Work
from graphfreeze.passes.tf1_effects import Effects
from graphfreeze.passes.tf1_frames import is_led
from graphfreeze.passes.tf1_place import Places
from graphfreeze.planning.guards import Guard, gives_value
from graphfreeze.savedmodel import DT_RESOURCE, DTYPE_NUMBERS
from graphfreeze.savedmodel.protos import AttrValue, NodeDef

# What random ops of a generator give unless they say otherwise; a saved graph leaves defaults out.
_VALUE_DTYPES = {
    "StatefulUniformFullInt": "uint64",
    **dict.fromkeys(("RngReadAndSkip", "StatefulUniformInt", "StatefulRandomBinomial"), "int64"),
}


def guard_graph(work: Work) -> None:
    """Guards every write of the main graph, then masks its gradients at their sources."""
    _Guards(work).run()


class _Guards:
    def __init__(self, work: Work) -> None:
        self.work = work
        self.scope = Scope(work.meta.graph_def)
        self.names = work.names()
        self.places = Places(work, self.scope, self.names)
        self.effects = Effects(work.meta, self.scope)
        self.asked = fetched_nodes(work.meta) | _listed(work)
        self.taken = {producer(t) for node in self.scope.node_list for t in self.scope.data_inputs(node)}
        self.old: dict[tuple[int, str, Guard], str] = {}

    def run(self) -> None:
        """The whole pass."""
        main = self.work.trace.main
        surrounded, silent = sorted_writes(self.work, self.scope, main)
        still = {write.node: write for write in silent}
        # Before anything is changed, because one may lead to another.
        behind = {name: self.effects.behind(self._dropped(write)) for name, write in still.items()}
        by_node: dict[str, list[tuple[Write, Guard]]] = {}
        for write, guard in surrounded:
            by_node.setdefault(write.node, []).append((write, guard))
        for name, writes in by_node.items():
            self._surround(self.scope.nodes[name], writes)
        for name, write in still.items():
            self._silence(write, behind[name])
        for source in main.sources:
            context = mask_source(self.work, self.scope, source, self._at_source)
            if context is not None:
                self.places.list_added(context, producer(source.tensor))
        self.places.frames.write()

    def _surround(self, node: NodeDef, writes: list[tuple[Write, Guard]]) -> None:
        """All guards of one op. The last one has its name, and gives out what it gave out."""
        name, inputs, given = node.name, self.scope.data_inputs(node), node.input[0]
        # The guard of what the op gives out comes last.
        ordered = sorted(writes, key=lambda pair: -pair[0].index)
        guards = [self._guard(node, inputs[w.index], w, g) for w, g in ordered]
        old = [
            self._shared_old(w, g, inputs[w.index]) if w.shared else guard.before()
            for guard, (w, g) in zip(guards, ordered, strict=True)
        ]
        set_inside(self.scope, self.names, node, old)
        done = node.name
        for guard, ref in zip(guards, old, strict=True):
            done = producer(guard.after(f"^{done}", ref))
        emit = guards[-1].context.emit
        if dtype := _value_dtype(node):
            done = producer(emit.op("Identity", [node.name, f"^{done}"], {"T": type_attr(dtype)}))
        elif GIVES_REF.fullmatch(node.op) and min(w.index for w, _ in writes) > 0:
            done = producer(emit.op("RefIdentity", [given, f"^{done}"], {"T": node.attr["T"]}))
        last = emit.node_of(done)
        last.name = name
        if "_output_shapes" in node.attr and name in self.taken:
            last.attr["_output_shapes"].CopyFrom(node.attr["_output_shapes"])
        beside = name if self.places.frames.is_inside(name) else producer(given)
        self.places.list_added(guards[0].context, beside, name)

    def _guard(self, node: NodeDef, handle: str, write: Write, guard: Guard) -> WriteGuard:
        merge = self.work.merges[write.variable]
        carried = self.work.trace.main.handles
        awaited = [f"^{producer(t)}" for t in self.scope.data_inputs(node) if self.scope.canonical(t) not in carried]
        context = self.places.context(
            write.variable,
            merge,
            handle,
            node.name,
            controls=list(dict.fromkeys([*awaited, *control_inputs(node)])),
            tie=producer(handle),
            roles=(),
            user=(write.node, write.op),
        )
        return WriteGuard(context, merge.held, handle, guard)

    def _shared_old(self, write: Write, guard: Guard, handle: str) -> str:
        """What all writes of a variable put back, read before the first of them and led to where this one stands."""
        key = (write.variable, self.places.frames.root(handle), guard)
        if key not in self.old:
            merge, root = self.work.merges[write.variable], key[1]
            user = (write.node, write.op)
            context = self.places.context(write.variable, merge, root, root, tie="", roles=(), user=user)
            value = WriteGuard(context, merge.held, root, guard).before()
            self.old[key] = producer(context.emit.identity(value, merge.dtype, "old"))
            self.places.list_added(context, root)
            self.scope.nodes[self.old[key]] = context.emit.node_of(self.old[key])
        return self.places.frames.lead(self.old[key], handle, by_value=True)

    def _dropped(self, write: Write) -> list[str]:
        """The inputs of a write that nothing takes once it does not run."""
        node = self.scope.nodes[write.node]
        carried = self.work.trace.main.handles
        return [text for text in self.scope.data_inputs(node) if self.scope.canonical(text) not in carried]

    def _silence(self, write: Write, behind: list[str]) -> None:
        node = self.scope.nodes[write.node]
        handle = self.scope.data_inputs(node)[0]
        controls = [text for text in node.input if is_control(text)]
        noted = attr_of(node, "_output_shapes").SerializeToString()
        is_ref = self.places.frames.root(handle) in self.places.refs
        if is_ref and GIVES_REF.fullmatch(node.op) and self._is_taken(node):
            dtype = node.attr["T"].type
            silence(self.work, self.scope, node, "RefIdentity", [handle, *dict.fromkeys([*controls, *behind])])
            node.attr["T"].CopyFrom(type_attr(dtype))
            if noted:
                node.attr["_output_shapes"].CopyFrom(AttrValue.FromString(noted))
            return
        if is_led(self.places.frames.way(handle)):
            controls.append(f"^{self._tie(node, handle, is_ref)}")
        silence(self.work, self.scope, node, "NoOp", list(dict.fromkeys([*controls, *behind])))

    def _is_taken(self, node: NodeDef) -> bool:
        """Whether someone may ask for what a write gives out. An optimizer's update is run, not fetched."""
        return "Apply" not in node.op or node.name in self.taken | self.asked

    def _tie(self, node: NodeDef, handle: str, is_ref: bool) -> str:
        """A node that runs in the frame or branch of a write, and where that does."""
        values = {handle} if is_ref else set()
        emit = GraphEmitter(self.scope, self.names, node.name, values=values)
        root = self.scope.nodes[self.places.frames.root(handle)]
        op, dtype = ("RefIdentity", root.attr["dtype"].type) if is_ref else ("Identity", DT_RESOURCE)
        tie = producer(emit.op(op, [handle], {"T": type_attr(dtype)}, "branch"))
        self.places.frames.add(producer(handle), [tie])
        emit.node_of(tie).device = node.device
        return tie

    def _at_source(self, source: Source, merge: Merge) -> MergeContext:
        """Geometry comes from outside; inside a frame or branch it stands there anew."""
        anchor = producer(source.tensor)
        inside = self.places.frames.is_inside(anchor)
        noted = {} if inside else self.work.geometry[source.variable]
        handles = {f"mask:{key}": constant for key, constant in noted.items()}
        emit = GraphEmitter(
            self.scope, self.names, anchor, values=set(handles.values()), frame=anchor if inside else None
        )
        return MergeContext(merge, emit, handles)


def _value_dtype(node: NodeDef) -> int:
    """The dtype of what a write gives out beside the variable; 0 where that is nothing."""
    if not gives_value(node.op) or node.op == "AssignVariableXlaConcatND":
        return 0
    default = _VALUE_DTYPES.get(node.op, "float32")
    return attr_of(node, "T" if node.op.endswith("CountUpTo") else "dtype").type or DTYPE_NUMBERS[default]


def _listed(work: Work) -> set[str]:
    """Nodes of which collections list a tensor."""
    lists = (c.node_list.value for c in work.meta.collection_def.values() if c.WhichOneof("kind") == "node_list")
    return {producer(name) for names in lists for name in names if ":" in name}
