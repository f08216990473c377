"""Takes arguments out of a FunctionDef, and turns value arguments back into handles."""

from __future__ import annotations

import base64
from collections.abc import Collection
from typing import Any

from graphfreeze.graph.refs import producer
from graphfreeze.graph.scope import Scope
from graphfreeze.savedmodel import DT_RESOURCE
from graphfreeze.savedmodel.protos import FunctionDef, TensorShapeProto


def remove_entries(repeated: Any, positions: Collection[int]) -> None:
    """Deletes entries of a repeated field."""
    for i in sorted(positions, reverse=True):
        del repeated[i]


def drop_arguments(function: FunctionDef, positions: Collection[int], handed_on: Collection[str] = ()) -> None:
    """Removes arguments, everything that is indexed by their place, and results that only hand them back.

    ``handed_on`` are nodes that gave such arguments to results, and are gone.
    """
    if not positions:
        return
    names = {function.signature.input_arg[i].name for i in positions} | set(handed_on)
    results = [i for i, o in enumerate(function.signature.output_arg) if producer(function.ret[o.name]) in names]
    for i in results:
        del function.ret[function.signature.output_arg[i].name]
    remove_entries(function.signature.output_arg, results)
    count = len(function.signature.input_arg)
    remove_entries(function.signature.input_arg, positions)
    if len(function.attr["_input_shapes"].list.shape if "_input_shapes" in function.attr else ()) == count:
        remove_entries(function.attr["_input_shapes"].list.shape, positions)
    for field in (function.arg_attr, function.resource_arg_unique_id):
        kept = {i: (v.SerializeToString() if hasattr(v, "SerializeToString") else v) for i, v in field.items()}
        field.clear()
        for i, value in kept.items():
            if i in positions:
                continue
            moved = i - sum(p < i for p in positions)
            if isinstance(value, bytes):
                field[moved].ParseFromString(value)
            else:
                field[moved] = value


def restore_handle(scope: Scope, position: int, text: str) -> None:
    """Makes an argument a handle again, and what handed its value on; ``text`` is what ``note_slot`` gave."""
    function: FunctionDef = scope.proto
    note = FunctionDef.FromString(base64.b64decode(text))
    argument = function.signature.input_arg[position]
    argument.type = DT_RESOURCE
    argument.handle_data.extend(note.signature.input_arg[0].handle_data)
    if 0 not in note.arg_attr:
        function.arg_attr.pop(position, None)
    elif "_output_shapes" not in note.arg_attr[0].attr:
        function.arg_attr[position].attr.pop("_output_shapes", None)
    shapes = function.attr["_input_shapes"].list.shape if "_input_shapes" in function.attr else ()
    if position < len(shapes):
        shapes[position].CopyFrom(next(iter(note.attr["_input_shapes"].list.shape), TensorShapeProto()))
    pending = [argument.name]
    while pending:
        ref = pending.pop()
        for output in function.signature.output_arg:
            if function.ret[output.name] == ref:
                output.type = DT_RESOURCE
                output.ClearField("handle_data")
                output.handle_data.extend(r for o in note.signature.output_arg for r in o.handle_data)
        for node in function.node_def:
            if node.op == "Identity" and node.input and node.input[0] == ref:
                node.attr["T"].type = DT_RESOURCE
                if "_output_shapes" in node.attr:
                    node.attr["_output_shapes"].list.shape[0].CopyFrom(TensorShapeProto())
                pending.append(scope.ref(node.name, "Identity"))
