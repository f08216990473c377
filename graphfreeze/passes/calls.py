"""Hands values and storages to the functions that a node runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.attrs import CALL, ROUNDS, bytes_attr, int_attr, shape_proto
from graphfreeze.graph.names import FreshNames
from graphfreeze.graph.ops import CallKind
from graphfreeze.graph.refs import attr_of, is_control
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.uses import Call
from graphfreeze.passes.needs import Layout, Mode
from graphfreeze.passes.reads import merge_before
from graphfreeze.passes.signature import Arguments, Typed, note_slot
from graphfreeze.savedmodel import DT_RESOURCE
from graphfreeze.savedmodel.protos import NodeDef

if TYPE_CHECKING:
    from graphfreeze.passes.functions import Rewriter


def rewire_call(
    rewriter: Rewriter,
    scope: Scope,
    names: FreshNames,
    call: Call,
    mode: Mode,
    arguments: Arguments,
) -> None:
    """Makes one node call the changed functions with what they need."""
    layout = rewriter.needs.layout(call, mode)
    if not any(rewriter.needs.touched(c.key) for c in call.callees):
        return
    node = scope.nodes[call.node]
    if call.op.kind is CallKind.DATA and layout.appended:
        where = f"function '{scope.name}'" if scope.in_function else "the main graph"
        raise UnsupportedModelError(
            f"Node '{node.name}' ({node.op}) in {where} hands a variable to a data function that both reads it and "
            "uses its handle, so it cannot be passed by value. Freeze another variable, or read this one outside the "
            "data function."
        )
    for callee in call.callees:
        inner = rewriter.needs.callee_layout(call, callee.attribute, mode)
        name = rewriter.build(callee.key, mode.inside(call.op.kind), inner)
        value = node.attr[callee.attribute]
        (value.func if callee.index is None else value.list.func[callee.index]).name = name
    if call.op.kind is CallKind.LOOP and not rewriter.work.trace.is_tf2:
        _one_round_at_a_time(rewriter, node, call)
    if layout.is_empty:
        return
    passed = _values(rewriter, scope, names, call, mode, arguments, layout)
    _hand_over(rewriter, node, call, layout, passed, arguments)


def _one_round_at_a_time(rewriter: Rewriter, node: NodeDef, call: Call) -> None:
    """Nothing orders the rounds of a loop of TF1, and one would put back what another has just written."""
    if any(rewriter.needs.guarded_below(callee.key) for callee in call.callees):
        given = node.attr["parallel_iterations"].i if "parallel_iterations" in node.attr else -1
        node.attr[ROUNDS].CopyFrom(int_attr(given))
        node.attr["parallel_iterations"].CopyFrom(int_attr(1))


def _values(
    rewriter: Rewriter,
    scope: Scope,
    names: FreshNames,
    call: Call,
    mode: Mode,
    arguments: Arguments,
    layout: Layout,
) -> dict[int, tuple[str, Typed]]:
    """Callee slot -> value to pass: merged here in front of the node, or handed on."""
    outer = dict(call.slots)
    node = scope.nodes[call.node]
    passed: dict[int, tuple[str, Typed]] = {}
    for slot in (*sorted(layout.inplace), *layout.values):
        merge = rewriter.work.merges[dict(call.callees[0].key.binding)[slot]]
        handle = node.input[slot - call.offset + call.start]
        if mode is Mode.PLAIN:
            variable = dict(call.callees[0].key.binding)[slot]
            storages = {role: arguments.storages[variable, role] for role in merge.roles}
            value = merge_before(merge, scope, names, node, handle, storages)
        elif outer[slot] in arguments.values and arguments.values[outer[slot]] not in scope.arguments:
            value = arguments.values[outer[slot]]
        else:
            value = handle  # the slot itself turned into the value, Identity nodes on the way included
        passed[slot] = (value, merge.typed)
    return passed


def _hand_over(
    rewriter: Rewriter,
    node: NodeDef,
    call: Call,
    layout: Layout,
    passed: dict[int, tuple[str, Typed]],
    arguments: Arguments,
) -> None:
    """Inputs, dtypes, shapes and counts of the calling node."""
    data = [text for text in node.input if not is_control(text)]
    controls = [text for text in node.input if is_control(text)]
    read_only = list(attr_of(node, "_read_only_resource_inputs").list.i)
    no_longer: list[int] = []
    for slot in sorted(layout.inplace):
        index = slot - call.offset + call.start
        value, (dtype, shape) = passed[slot]
        data[index] = value
        node.attr[call.op.types].list.type[slot - call.offset] = dtype
        if index in read_only:
            read_only.remove(index)
            no_longer.append(index)
        if call.op.kind is CallKind.LOOP:
            _set_loop_shape(node, slot, shape)
    added = [(passed[s][0], *passed[s][1]) for s in layout.values]
    added += [(arguments.storages[key], DT_RESOURCE, ()) for key in layout.storages]
    if "_read_only_resource_inputs" in node.attr:
        read_only += [len(data) + i for i, (_, dtype, _) in enumerate(added) if dtype == DT_RESOURCE]
        node.attr["_read_only_resource_inputs"].list.i[:] = read_only
    del node.input[:]
    node.input.extend([*data, *(value for value, _, _ in added), *controls])
    first = len(node.attr[call.op.types].list.type)
    node.attr[call.op.types].list.type.extend(dtype for _, dtype, _ in added)
    if call.op.kind is CallKind.LOOP:
        _grow_loop(node, [shape for _, _, shape in added])
    mark = {"inplace": sorted(layout.inplace), "first": first, "values": len(layout.values)}
    mark |= {"read_only": no_longer, "notes": _notes(rewriter, call, layout)}
    node.attr[CALL].CopyFrom(bytes_attr(json.dumps(mark, sort_keys=True)))


def _notes(rewriter: Rewriter, call: Call, layout: Layout) -> dict[str, dict[str, str]]:
    """Per function attribute and slot, what the function said of the slot before it took a value."""
    return {
        f"{callee.attribute}:{callee.index or 0}": {
            str(slot): note_slot(rewriter.library[callee.key.function], slot) for slot in sorted(layout.inplace)
        }
        for callee in call.callees
        if layout.inplace
    }


def _set_loop_shape(node: NodeDef, slot: int, shape: tuple[int, ...] | None) -> None:
    for name in ("output_shapes", "_output_shapes"):
        if slot < len(attr_of(node, name).list.shape):
            node.attr[name].list.shape[slot].CopyFrom(shape_proto(shape))


def _grow_loop(node: NodeDef, shapes: list[tuple[int, ...] | None]) -> None:
    """A loop gives every input back. Gradients go by ``_num_original_outputs``: forgetting it is silently wrong."""
    for name in ("output_shapes", "_output_shapes"):
        if attr_of(node, name).list.shape:
            node.attr[name].list.shape.extend(shape_proto(shape) for shape in shapes)
    if "_num_original_outputs" in node.attr:
        node.attr["_num_original_outputs"].i += len(shapes)
