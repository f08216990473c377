"""Exact comparison: tensors by their bits, messages by field, and the numeric bounds of the promises.

NaN equals the same NaN and 0.0 does not equal -0.0 here, because a frozen value that changed its bits has moved.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tests.helpers.variables import Array


def bits_equal(actual: Any, expected: Any) -> bool:
    """Same dtype, shape and bytes."""
    return not _bit_difference(np.asarray(actual), np.asarray(expected))


def assert_bits_equal(actual: Any, expected: Any, label: str = "tensor") -> None:
    """Fails with how many elements differ, the first of them, and the largest difference."""
    difference = _bit_difference(np.asarray(actual), np.asarray(expected))
    assert not difference, f"{label}: {difference}"


def assert_all_bits_equal(actual: Mapping[str, Any], expected: Mapping[str, Any], label: str = "") -> None:
    """As assert_bits_equal for mappings of the same keys (values may themselves be mappings)."""
    assert list(actual) == list(expected), f"{label}: names {list(actual)} != {list(expected)}"
    for name in expected:
        if isinstance(expected[name], Mapping):
            assert isinstance(actual[name], Mapping), f"{label}{name}: {actual[name]!r} != {expected[name]!r}"
            assert_all_bits_equal(actual[name], expected[name], f"{label}{name} ")
        else:
            assert_bits_equal(actual[name], expected[name], f"{label}{name}")


def assert_within_eps(actual: Any, expected: Any, label: str = "tensor", factor: float = 16.0) -> None:
    """Promise G4: |a - e| <= factor * eps(dtype) * max|e|, per tensor."""
    a, e = np.asarray(actual), np.asarray(expected)
    assert a.dtype == e.dtype, f"{label}: dtype {a.dtype} != {e.dtype}"
    assert a.shape == e.shape, f"{label}: shape {a.shape} != {e.shape}"
    if not a.size:
        return
    wide = np.complex128 if np.iscomplexobj(a) else np.float64
    worst = float(np.max(np.abs(a.astype(wide) - e.astype(wide))))
    bound = factor * _eps(a) * float(np.max(np.abs(e.astype(wide))))
    assert worst <= bound, f"{label}: off by {worst:.3g}, allowed {bound:.3g}"


def _eps(a: Array) -> float:
    info: Any = ml_dtypes.finfo  # also knows bfloat16
    return float(info(a.real.dtype).eps)


def _bit_difference(actual: Array, expected: Array) -> str:
    if actual.dtype != expected.dtype:
        return f"dtype {actual.dtype} != {expected.dtype}"
    if actual.shape != expected.shape:
        return f"shape {actual.shape} != {expected.shape}"
    differs = _differing(actual, expected)
    if not differs.any():
        return ""
    first = tuple(int(i) for i in np.argwhere(differs)[0])
    return (
        f"{int(differs.sum())} of {differs.size} elements differ, first at {list(first)}: "
        f"{actual[first]!r} != {expected[first]!r}"
    )


def _differing(actual: Array, expected: Array) -> Array:
    if actual.dtype.kind in "OSU":
        return np.asarray(actual != expected)
    shape = (*actual.shape, actual.dtype.itemsize)
    a, e = (np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(shape) for x in (actual, expected))
    return np.asarray((a != e).any(axis=-1))


KEYS = {
    "tensorflow.FunctionDef": lambda message: message.signature.name,
    "tensorflow.NodeDef": lambda message: message.name,
}
"""Repeated messages that are matched by name, so that one extra entry does not shift all others."""


def proto_diff(actual: Message, expected: Message, ignore: frozenset[str] = frozenset()) -> list[str]:
    """All differing fields, one line each, unknown fields included. `ignore` holds paths without indices and keys."""
    return list(_diff(actual, expected, "", "", ignore))


def _diff(a: Message, e: Message, path: str, plain: str, ignore: frozenset[str]) -> Iterator[str]:
    present = {field.name: field for field, _ in [*a.ListFields(), *e.ListFields()]}
    for name, field in sorted(present.items()):
        there, bare = f"{path}.{name}".lstrip("."), f"{plain}.{name}".lstrip(".")
        if bare not in ignore:
            yield from _diff_field(a, e, field, there, bare, ignore)
    if _unknown(a) != _unknown(e):
        yield f"{path}: unknown fields {_unknown(a)} != {_unknown(e)}"


def _diff_field(
    a: Message, e: Message, field: FieldDescriptor, path: str, plain: str, ignore: frozenset[str]
) -> Iterator[str]:
    x, y = getattr(a, field.name), getattr(e, field.name)
    if _is_map(field):
        yield from _diff_entries(dict(x), dict(y), path, plain, ignore)
    elif field.is_repeated:
        yield from _diff_repeated(field, list(x), list(y), path, plain, ignore)
    elif field.message_type is not None and a.HasField(field.name) and e.HasField(field.name):
        yield from _diff(x, y, path, plain, ignore)
    elif field.message_type is not None or (field.has_presence and a.HasField(field.name) != e.HasField(field.name)):
        yield f"{path}: {_short(a, field)} != {_short(e, field)}"
    elif repr(x) != repr(y):
        yield f"{path}: {x!r} != {y!r}"


def _diff_repeated(
    field: FieldDescriptor, x: list[Any], y: list[Any], path: str, plain: str, ignore: frozenset[str]
) -> Iterator[str]:
    key = KEYS.get(field.message_type.full_name) if field.message_type else None
    if key and len({key(m) for m in x}) == len(x) and len({key(m) for m in y}) == len(y):
        yield from _diff_entries({key(m): m for m in x}, {key(m): m for m in y}, path, plain, ignore)
        common = [[key(m) for m in one if key(m) in {key(o) for o in other}] for one, other in ((x, y), (y, x))]
        if common[0] != common[1]:
            yield f"{path}: order differs"
    else:
        yield from _diff_entries(dict(enumerate(x)), dict(enumerate(y)), path, plain, ignore)


def _diff_entries(x: dict[Any, Any], y: dict[Any, Any], path: str, plain: str, ignore: frozenset[str]) -> Iterator[str]:
    for key in [*x, *(key for key in y if key not in x)]:
        there = f"{path}[{key!r}]"
        if key not in x or key not in y:
            yield f"{there}: only in {'the first' if key in x else 'the second'}"
        elif isinstance(x[key], Message):
            yield from _diff(x[key], y[key], there, plain, ignore)
        elif repr(x[key]) != repr(y[key]):
            yield f"{there}: {x[key]!r} != {y[key]!r}"


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _short(message: Message, field: FieldDescriptor) -> str:
    if not message.HasField(field.name):
        return "absent"
    text = " ".join(str(getattr(message, field.name)).split())
    return repr(text if len(text) < 80 else text[:77] + "...") if text else "present, empty"


def _unknown(message: Message) -> list[str]:
    """Unknown fields as comparable text; groups are opened."""
    return sorted(_unknown_text(UnknownFieldSet(message)))


def _unknown_text(fields: Any) -> list[str]:
    nested = [(f.field_number, f.wire_type, _unknown_text(f.data) if f.wire_type == 3 else f.data) for f in fields]
    return [repr(entry) for entry in nested]
