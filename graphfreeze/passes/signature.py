"""Changes the arguments of a function, in all the places where a FunctionDef speaks of them."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from graphfreeze.graph.attrs import shape_proto
from graphfreeze.graph.names import FreshNames
from graphfreeze.graph.scope import Scope
from graphfreeze.passes.needs import Layout
from graphfreeze.passes.state import StorageKey
from graphfreeze.savedmodel import DT_RESOURCE
from graphfreeze.savedmodel.protos import AttrValue, FunctionDef, Message

Typed = tuple[int, tuple[int, ...] | None]
"""(dtype, shape); the shape is None where it is not known."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Edges inside a scope: the value of a slot, and the handle of a storage."""

    values: Mapping[int, str]
    storages: Mapping[StorageKey, str] = field(default_factory=dict)


def change_signature(
    scope: Scope,
    names: FreshNames,
    layout: Layout,
    types: Mapping[int, Typed],
    new: Mapping[StorageKey, Typed],
) -> Arguments:
    """Turns slots into values and appends arguments. ``scope.arguments`` stays what it was.

    ``types`` are the dtypes and shapes of the slots that carry values, ``new`` those of the storages.
    """
    function: FunctionDef = scope.proto
    values: dict[int, str] = {}
    for slot in sorted(layout.inplace):
        dtype, shape = types[slot]
        function.signature.input_arg[slot].type = dtype
        function.signature.input_arg[slot].ClearField("handle_data")
        _set_shape(function, slot, shape)
        values[slot] = scope.arguments[slot]
    for slot in layout.values:
        values[slot] = _append(function, names.fresh(f"graphfreeze_value_{slot}"), *types[slot])
    storages: dict[StorageKey, str] = {}
    for i, key in enumerate(layout.storages):
        storages[key] = _append(function, names.fresh(f"graphfreeze_{i}"), DT_RESOURCE, ())
        set_handle_data(function.signature.input_arg[-1], *new[key])
    if layout.returned:
        for argument in function.signature.input_arg[len(scope.arguments) :]:
            name = names.fresh(f"{argument.name}_out")
            result = function.signature.output_arg.add(name=name, type=argument.type)
            result.handle_data.extend(argument.handle_data)
            function.ret[name] = argument.name
    return Arguments(values, storages)


def is_new_argument(name: str) -> bool:
    """Whether an argument has a name that ``change_signature`` gives."""
    return re.fullmatch(r"graphfreeze_(value_)?\d+(_\d+)*", name) is not None


def note_slot(function: FunctionDef, slot: int) -> str:
    """What a function says of one argument and of the results that hand it on, to be restored word for word."""
    note = FunctionDef()
    argument = function.signature.input_arg[slot]
    note.signature.input_arg.add().CopyFrom(argument)
    results = [o for o in function.signature.output_arg if function.ret[o.name] == argument.name]
    note.signature.output_arg.extend(results)
    if slot in function.arg_attr:
        note.arg_attr[0].CopyFrom(function.arg_attr[slot])
    shapes = function.attr["_input_shapes"].list.shape if "_input_shapes" in function.attr else ()
    if slot < len(shapes):
        note.attr["_input_shapes"].list.shape.add().CopyFrom(shapes[slot])
    return base64.b64encode(note.SerializeToString(deterministic=True)).decode()


def set_handle_data(argument: Message, dtype: int, shape: tuple[int, ...] | None) -> None:
    """Notes dtype and shape of the variable behind a handle; gradients of reloaded loops need it."""
    argument.handle_data.add(dtype=dtype, shape=shape_proto(shape))


def _append(function: FunctionDef, name: str, dtype: int, shape: tuple[int, ...] | None) -> str:
    function.signature.input_arg.add(name=name, type=dtype)
    slot = len(function.signature.input_arg) - 1
    function.arg_attr[slot].attr["_user_specified_name"].s = name.encode()
    if "_input_shapes" in function.attr:
        function.attr["_input_shapes"].list.shape.add().CopyFrom(shape_proto(shape))
    if dtype != DT_RESOURCE:
        _set_shape(function, slot, shape)
    return name


def _set_shape(function: FunctionDef, slot: int, shape: tuple[int, ...] | None) -> None:
    noted = AttrValue(list=AttrValue.ListValue(shape=[shape_proto(shape)]))
    function.arg_attr[slot].attr["_output_shapes"].CopyFrom(noted)
    shapes = function.attr["_input_shapes"].list.shape if "_input_shapes" in function.attr else ()
    if slot < len(shapes):
        shapes[slot].CopyFrom(shape_proto(shape))
