"""Typed constructors for node attributes, so that a pass reads as what it builds."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from graphfreeze.savedmodel import dtype_number, numpy_dtype
from graphfreeze.savedmodel.protos import AttrValue, Message, TensorProto, TensorShapeProto

FACT = "_graphfreeze_fact"
"""On the last node of a merge: what became of the variable, as JSON."""
ADDED = "_graphfreeze"
"""On every added node: its role."""
REPLACES = "_graphfreeze_of"
"""On the last node of a merge: the edge whose consumers it took over."""
CHANGED = "_graphfreeze_changed"
"""On a node that was changed in place: the node as it was (see ``remembered``)."""
GUARDED = "_graphfreeze_guarded"
"""On a write that a guard surrounds: the name it had, which the op that puts frozen elements back has now."""
SILENCED = "_graphfreeze_silenced"
"""On a write that does not run any more: the node as it was (see ``remembered``)."""
OP = "_graphfreeze_op"
"""Beside ``SILENCED``: the definition of the op, which a model that is saved again lists no more."""
EDITED = "_graphfreeze_edited"
"""On an op whose inputs and attributes were changed: the node as it was (see ``remembered``)."""
ORIGIN = "_graphfreeze_function"
"""On one node of every changed function: what the function was called and whether it had effects, as JSON."""
CALL = "_graphfreeze_call"
"""On a call inside a function: how its inputs were changed, as JSON."""
ROUNDS = "_graphfreeze_rounds"
"""On a loop of a TF1 graph whose rounds run one at a time now: how many could run at once, -1 where nothing said."""

RAW = "_graphfreeze_raw"
"""On a node of a TF1 main graph whose name the effective value took over: the old name."""
INPUT = "_graphfreeze_input"
"""On a lookup of a TF1 main graph that now takes the raw value: its first input as it was."""


def type_attr(dtype: int) -> AttrValue:
    """A DataType number."""
    return AttrValue(type=dtype)


def int_attr(value: int) -> AttrValue:
    """An integer."""
    return AttrValue(i=value)


def bool_attr(value: bool) -> AttrValue:
    """A flag."""
    return AttrValue(b=value)


def bytes_attr(value: bytes | str) -> AttrValue:
    """A string."""
    return AttrValue(s=value.encode() if isinstance(value, str) else value)


def types_attr(dtypes: Iterable[int]) -> AttrValue:
    """A list of DataType numbers."""
    return AttrValue(list=AttrValue.ListValue(type=list(dtypes)))


def shape_proto(shape: Iterable[int] | None) -> TensorShapeProto:
    """A static shape; None for one of unknown rank."""
    if shape is None:
        return TensorShapeProto(unknown_rank=True)
    return TensorShapeProto(dim=[TensorShapeProto.Dim(size=d) for d in shape])


def shape_attr(shape: Iterable[int]) -> AttrValue:
    """A static shape as an attribute."""
    return AttrValue(shape=shape_proto(shape))


def shapes_attr(shapes: Iterable[Iterable[int]]) -> AttrValue:
    """Static shapes, one per output."""
    return AttrValue(list=AttrValue.ListValue(shape=[shape_proto(shape) for shape in shapes]))


def tensor_proto(array: NDArray[np.generic]) -> TensorProto:
    """A numeric array as a TensorProto; the bytes are little-endian, as on disk."""
    return TensorProto(
        dtype=dtype_number(array.dtype), tensor_shape=shape_proto(array.shape), tensor_content=array.tobytes()
    )


def string_tensor(values: Iterable[bytes], shape: tuple[int, ...]) -> TensorProto:
    """Byte strings as a TensorProto."""
    return TensorProto(dtype=7, tensor_shape=shape_proto(shape), string_val=list(values))


def tensor_attr(array: NDArray[np.generic]) -> AttrValue:
    """A numeric array as an attribute."""
    return AttrValue(tensor=tensor_proto(array))


def attr_bytes(node: Message, name: str) -> bytes:
    """A string attribute of a node, empty where it has none."""
    return bytes(node.attr[name].s) if name in node.attr else b""


def tensor_value(tensor: TensorProto) -> NDArray[np.generic]:
    """A numeric TensorProto as an array. A list shorter than the tensor repeats its last value (tensor.proto)."""
    dtype = numpy_dtype(tensor.dtype)
    shape = tuple(d.size for d in tensor.tensor_shape.dim)
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, dtype).reshape(shape)
    values = next(
        (list(getattr(tensor, f)) for f in ("int_val", "int64_val", "bool_val", "float_val") if getattr(tensor, f)), [0]
    )
    count = int(np.prod(shape, dtype=np.int64))
    return np.asarray((values + values[-1:] * (count - len(values)))[:count], dtype).reshape(shape)
