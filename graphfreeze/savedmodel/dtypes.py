"""TensorFlow's data types as numbers, names and numpy dtypes, in both directions.

Reference types (``DT_FLOAT_REF`` and so on) are the base number plus 100; they name the same bytes.
Types without elements of a fixed size (strings, resources, variants) have no numpy dtype that a checkpoint could map.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.savedmodel.protos import types_pb2

DType = np.dtype[Any]

DT_STRING: int = types_pb2.DT_STRING
DT_RESOURCE: int = types_pb2.DT_RESOURCE
DT_VARIANT: int = types_pb2.DT_VARIANT

_REF_OFFSET = 100

# The names that TensorFlow prints, where they are not just the constant in lower case.
_SPECIAL_NAMES = {"DT_FLOAT": "float32", "DT_DOUBLE": "float64", "DT_HALF": "float16"}

# Quantised types are plain integers on disk. Types of less than a byte take a whole byte each, there as in ml_dtypes.
_STORED_AS = {
    "bool": np.bool_,
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
    "complex64": np.complex64,
    "complex128": np.complex128,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "qint8": np.int8,
    "qint16": np.int16,
    "qint32": np.int32,
    "quint8": np.uint8,
    "quint16": np.uint16,
}


def _name_of(constant: str) -> str:
    return _SPECIAL_NAMES.get(constant) or constant.removeprefix("DT_").lower()


def _numpy_of(name: str) -> DType | None:
    stored = _STORED_AS.get(name)
    if stored is None:
        # bfloat16, float8_*, float4_*, int4, uint4, int2, uint2: whatever the installed ml_dtypes knows.
        stored = getattr(ml_dtypes, name, None)
    return None if stored is None else np.dtype(stored)


DTYPE_NAMES: dict[int, str] = {
    number: (_name_of(constant.removesuffix("_REF")) + "_ref" if number > _REF_OFFSET else _name_of(constant))
    for constant, number in types_pb2.DataType.items()
}
"""Number -> the name TensorFlow prints: ``float32``, ``string``, ``float32_ref``."""

NUMPY_DTYPES: dict[int, DType] = {
    number: dtype
    for number, name in DTYPE_NAMES.items()
    if number < _REF_OFFSET and (dtype := _numpy_of(name)) is not None
}
"""Number -> numpy dtype of one stored element; strings, resources and variants are missing."""

DTYPE_NUMBERS: dict[str, int] = {name: number for number, name in DTYPE_NAMES.items()}
"""The name TensorFlow prints -> number."""

# Quantised types come after the plain integers they are stored as, so the first one to claim a dtype is the plain one.
_NUMBER_OF_NUMPY: dict[DType, int] = {}
for _number in sorted(NUMPY_DTYPES, key=lambda number: DTYPE_NAMES[number].startswith(("q", "quint"))):
    _NUMBER_OF_NUMPY.setdefault(NUMPY_DTYPES[_number], _number)


def base_dtype(number: int) -> int:
    """The type without its ``_REF``."""
    return number - _REF_OFFSET if number > _REF_OFFSET else number


def dtype_name(number: int) -> str:
    """A printable name, also for numbers that this TensorFlow does not know."""
    return DTYPE_NAMES.get(number, f"unknown type {number}")


def numpy_dtype(number: int) -> DType:
    """The numpy dtype of one element; strings are ``object`` (of bytes)."""
    base = base_dtype(number)
    if base == DT_STRING:
        return np.dtype(object)
    dtype = NUMPY_DTYPES.get(base)
    if dtype is None:
        raise UnsupportedModelError(
            f"tensors of type '{dtype_name(number)}' cannot be read from a checkpoint: "
            "their elements have no fixed size"
        )
    return dtype


def dtype_number(dtype: DType) -> int:
    """The number for a numpy dtype; arrays of ``object`` are strings."""
    if dtype == np.dtype(object):
        return DT_STRING
    number = _NUMBER_OF_NUMPY.get(dtype.newbyteorder("="))
    if number is None:
        raise UnsupportedModelError(
            f"TensorFlow has no type for a numpy array of dtype '{dtype}'; "
            "strings are given as an object array of bytes"
        )
    return number
