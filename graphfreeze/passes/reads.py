"""Puts the merge between a read and everything that used its value.

Where a function is handed values (inside loops and data functions), its reading nodes are turned into nodes that take
the value, under their old names, so that control edges to them stay valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphfreeze.graph.attrs import CHANGED, FACT, REPLACES, bytes_attr, shape_proto, type_attr
from graphfreeze.graph.names import FreshNames
from graphfreeze.graph.ops import READS, Access
from graphfreeze.graph.refs import attr_of, is_control
from graphfreeze.graph.scope import Scope, Use
from graphfreeze.graph.uses import Body, Read
from graphfreeze.lowering.emitter import Emitter, control_inputs
from graphfreeze.lowering.facts import fact
from graphfreeze.lowering.full import merge_full
from graphfreeze.lowering.lookup import merge_lookup
from graphfreeze.lowering.merge import Merge, MergeContext
from graphfreeze.passes.needs import Mode
from graphfreeze.passes.signature import Arguments
from graphfreeze.savedmodel.protos import AttrValue, NodeDef

if TYPE_CHECKING:
    from graphfreeze.passes.functions import Rewriter


def rewire_reads(
    rewriter: Rewriter, scope: Scope, names: FreshNames, body: Body, mode: Mode, arguments: Arguments
) -> dict[str, str]:
    """Merges every read of one body; returns raw tensor -> merged tensor, as graph tensor names."""
    moved: dict[str, str] = {}
    for read in body.reads:
        merge = rewriter.needs.merged(read)
        if merge is None:
            continue
        node = scope.nodes[read.node]
        if read.slot in arguments.values and rewriter.needs.by_value(read, mode):
            read_value(scope, names, node, merge, arguments.values[read.slot])
            continue
        storages = {role: arguments.storages[read.variable, role] for role in merge.roles}
        context = _context(merge, scope, names, node, node.input[0], storages)
        first = len(scope.node_list)
        for raw, uses, merged in _merged(context, scope, read, node):
            replace_uses(scope, uses, raw, merged)
            mark_merge(context, merged, raw)
            moved[_tensor_name(raw)] = _tensor_name(merged)
        _let_writes_wait(scope, node, scope.node_list[first:])
    return moved


def _let_writes_wait(scope: Scope, node: NodeDef, added: Sequence[NodeDef]) -> None:
    """Whoever waits for a read, or for a call that reads, waits for the reads that stand for it now.

    In the function those are later writes. In its callers they are writes that come after the call, such as an
    optimizer's decay: they wait for the function's control outputs, which is what is left of it once it is inlined.
    """
    reads = [n.name for n in added if n.op in READS]
    for other in scope.node_list if reads else ():
        if f"^{node.name}" in other.input:
            other.input.extend(f"^{name}" for name in reads)
    if scope.in_function and node.name in scope.proto.control_ret.values():
        scope.proto.signature.control_output.extend(reads)
        for name in reads:
            scope.proto.control_ret[name] = name


def _context(
    merge: Merge, scope: Scope, names: FreshNames, anchor: NodeDef, handle: str, storages: dict[str, str]
) -> MergeContext:
    emitter = Emitter(scope, names, anchor.name, control_inputs(anchor))
    return MergeContext(merge, emitter, {"base": handle, **storages})


def _merged(
    context: MergeContext, scope: Scope, read: Read, node: NodeDef
) -> Sequence[tuple[str, tuple[Use, ...], str]]:
    """(raw tensor, its uses, merged tensor) of one read."""
    if read.access.path is Access.GATHER:
        lookups = [(lookup, scope.ref(lookup.node, lookup.op)) for lookup in read.access.lookups]
        return [(raw, scope.uses(raw), merge_lookup(context, scope, lookup)) for lookup, raw in lookups]
    raw = scope.ref(node.name, node.op)
    if node.op == "ReadVariableOp":
        return [(raw, read.access.uses, merge_full(context, raw))]
    base = context.emit.read(node.input[0], *context.merge.typed)
    merged = gather_again(context.emit, node, merge_full(context, base), context.merge.dtype)
    return [(raw, read.access.uses, merged)]


def gather_again(emit: Emitter, node: NodeDef, value: str, dtype: int) -> str:
    """A ResourceGather or ResourceGatherNd on a value instead of a handle."""
    ids, id_dtype = node.input[1], node.attr["Tindices"].type
    if node.op == "ResourceGatherNd":
        return emit.gather_nd(value, ids, dtype, id_dtype)
    batch = attr_of(node, "batch_dims").i
    return emit.gather(value, ids, dtype, id_dtype, axis=batch, batch_dims=batch)


def merge_before(
    merge: Merge, scope: Scope, names: FreshNames, call: NodeDef, handle: str, storages: dict[str, str]
) -> str:
    """Reads and merges a variable in front of a loop or data op; returns the value to pass in."""
    context = _context(merge, scope, names, call, handle, storages)
    first = len(scope.node_list)
    raw = context.emit.read(handle, *merge.typed, "read")
    merged = merge_full(context, raw)
    mark_merge(context, merged, raw)
    _let_writes_wait(scope, call, scope.node_list[first:])
    return merged


def mark_merge(context: MergeContext, merged: str, raw: str) -> None:
    """Notes on the last node of a merge what it stands for, so that it can be undone anywhere."""
    node = context.emit.node_of(merged)
    node.attr[REPLACES].CopyFrom(bytes_attr(raw))
    node.attr[FACT].CopyFrom(bytes_attr(fact(context.merge)))


def replace_uses(scope: Scope, uses: Sequence[Use], raw: str, merged: str) -> None:
    """Re-points uses from one tensor to another."""
    for use in uses:
        if use.result is not None:
            scope.proto.ret[use.result] = merged
        elif scope.canonical(scope.nodes[use.node].input[use.index]) == scope.canonical(raw):
            scope.nodes[use.node].input[use.index] = merged


def _tensor_name(ref: str) -> str:
    """A function's edge as the name of the tensor in the graph that it becomes."""
    return f"{ref.split(':', 1)[0]}:{ref.rsplit(':', 1)[-1] if ':' in ref else 0}"


def read_value(scope: Scope, names: FreshNames, node: NodeDef, merge: Merge, value: str) -> None:
    """Turns a reading node into one that takes the value; consumers follow the changed output name."""
    original = scope.remembered(node)
    raw = scope.ref(node.name, node.op)
    uses = scope.uses(raw)
    inputs = [value, *node.input[1:]]
    noted = node.attr.get("_output_shapes")
    attrs: dict[str, AttrValue]
    if node.op == "ReadVariableOp":
        op, attrs = "Identity", {"T": type_attr(merge.dtype)}
    else:
        emit = Emitter(scope, names, node.name)
        again = emit.node_of(gather_again(emit, node, value, merge.dtype))
        op, attrs = again.op, dict(again.attr)
        attrs = {k: v for k, v in attrs.items() if not k.startswith("_")}
        inputs = [*again.input, *(text for text in node.input if is_control(text))]
        scope.node_list.remove(again)
    kept = AttrValue() if noted is None else AttrValue.FromString(noted.SerializeToString())
    attrs = {k: AttrValue.FromString(v.SerializeToString()) for k, v in attrs.items()}
    node.op = op
    del node.input[:]
    node.input.extend(inputs)
    node.attr.clear()
    for key, attr in attrs.items():
        node.attr[key].CopyFrom(attr)
    if noted is not None:
        node.attr["_output_shapes"].CopyFrom(kept)
    node.attr[CHANGED].CopyFrom(bytes_attr(original))
    replace_uses(scope, uses, raw, scope.ref(node.name, op))


def take_value(scope: Scope, argument: str, dtype: int, shape: tuple[int, ...] | None) -> None:
    """Lets Identity nodes and results that handed a handle on hand on its value."""
    pending = [argument]
    while pending:
        ref = pending.pop()
        for use in scope.uses(ref):
            if use.result is not None:
                output = next(o for o in scope.proto.signature.output_arg if o.name == use.result)
                output.type = dtype
                output.ClearField("handle_data")
                continue
            node = scope.nodes[use.node]
            if node.op == "Identity" and use.index == 0 and CHANGED not in node.attr:
                node.attr["T"].type = dtype
                shapes = AttrValue(list=AttrValue.ListValue(shape=[shape_proto(shape)]))
                node.attr["_output_shapes"].CopyFrom(shapes)
                pending.append(scope.ref(node.name, node.op))
