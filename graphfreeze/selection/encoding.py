"""Regions as short text for people, and as plain JSON values for plans and for the record inside a rewritten model."""

from __future__ import annotations

import base64
import binascii
import math
from typing import TypeAlias

import numpy as np

from graphfreeze.errors import InputOutputError
from graphfreeze.selection.axis import Indices, Span
from graphfreeze.selection.canonical import simplify
from graphfreeze.selection.region import Box, Dense, Empty, Points, Region, Rows, Shape, Whole

MOST_PLAIN = 64
"""Lists up to this length are written as numbers; longer ones, and masks, as base64."""

Encoded: TypeAlias = dict[str, object]


def describe(region: Region) -> str:
    """Say what a region is in a few words; a box as the index that selects it.

    >>> from graphfreeze.selection.canonical import box_region, rows_region
    >>> describe(box_region((4, 256), [slice(None), slice(64, 128)]))
    '[:, 64:128]'
    >>> describe(rows_region((9, 4), 0, [0, 1, 5]))
    '3 rows of axis 0'
    """
    match region:
        case Box():
            return _box_text(region)
        case Rows():
            return f"{len(region.indices):,} rows of axis {region.axis}"
        case Points():
            return f"{region.count:,} points"
        case Dense():
            return f"mask ({_percent(region.count, region.size)} %)"
        case Whole():
            return "whole"
        case _:
            return "nothing"


def region_to_dict(region: Region) -> Encoded:
    """The region as JSON values; `region_from_dict` reads it back to an equal region."""
    shape = list(region.shape)
    match region:
        case Box():
            return {"kind": "box", "shape": shape, "spans": [[s.start, s.stop, s.step] for s in region.spans]}
        case Rows():
            return {"kind": "rows", "shape": shape, "axis": region.axis, "indices": _pack(region.indices)}
        case Points():
            return {"kind": "points", "shape": shape, "indices": _pack(region.indices)}
        case Dense():
            bits = np.packbits(region.mask.reshape(-1), bitorder="little")
            return {"kind": "dense", "shape": shape, "mask": base64.b64encode(bits.tobytes()).decode("ascii")}
        case Whole():
            return {"kind": "whole", "shape": shape}
        case _:
            return {"kind": "empty", "shape": shape}


def region_from_dict(data: object) -> Region:
    """Read what `region_to_dict` wrote.

    Raises:
        InputOutputError: it was damaged since.
    """
    try:
        return simplify(_decode(data))
    except (ValueError, TypeError, binascii.Error) as error:
        raise InputOutputError(f"A stored region is damaged: {error}.") from None


def _decode(data: object) -> Region:
    match data:
        case {"kind": "box", "shape": list(shape), "spans": list(spans)}:
            return Box(_shape(shape), tuple(_span(span) for span in spans))
        case {"kind": "rows", "shape": list(shape), "axis": int(axis), "indices": indices}:
            return Rows(_shape(shape), axis, _unpack(indices))
        case {"kind": "points", "shape": list(shape), "indices": indices}:
            return Points(_shape(shape), _unpack(indices))
        case {"kind": "dense", "shape": list(shape), "mask": str(text)}:
            return _unpack_mask(_shape(shape), text)
        case {"kind": "whole", "shape": list(shape)}:
            return Whole(_shape(shape))
        case {"kind": "empty", "shape": list(shape)}:
            return Empty(_shape(shape))
    raise ValueError("expected the kind of a region, its shape and its elements")


def _shape(sizes: list[object]) -> Shape:
    shape = tuple(size for size in sizes if isinstance(size, int) and size >= 0)
    if len(shape) != len(sizes):
        raise ValueError(f"{sizes} is no shape")
    return shape


def _span(bounds: object) -> Span:
    match bounds:
        case [int(start), int(stop), int(step)]:
            return Span(start, stop, step)
    raise ValueError(f"{bounds} is no span")


def _pack(indices: Indices) -> list[int] | dict[str, str]:
    if len(indices) <= MOST_PLAIN:
        return [int(index) for index in indices]
    dtype = "<i4" if indices[-1] <= np.iinfo(np.int32).max else "<i8"
    return {"dtype": dtype, "base64": base64.b64encode(indices.astype(dtype).tobytes()).decode("ascii")}


def _unpack(packed: object) -> Indices:
    match packed:
        case list(plain) if all(isinstance(index, int) for index in plain):
            return np.array(plain, dtype=np.int64)
        case {"dtype": "<i4" | "<i8" as dtype, "base64": str(text)}:
            return np.frombuffer(base64.b64decode(text, validate=True), dtype=dtype).astype(np.int64)
    raise ValueError("a list of indices is neither plain nor packed")


def _unpack_mask(shape: Shape, text: str) -> Dense:
    packed = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8)
    size = math.prod(shape)
    if len(packed) != (size + 7) // 8:
        raise ValueError(f"{len(packed)} bytes for a mask of shape {shape}")
    return Dense(shape, np.unpackbits(packed, count=size, bitorder="little").astype(np.bool_).reshape(shape))


def _box_text(box: Box) -> str:
    items = [_span_text(span, size) for span, size in zip(box.spans, box.shape, strict=True)]
    while items[-1] == ":" and len(items) > 1:
        items.pop()
    leading = next((at for at, item in enumerate(items) if item != ":"), 0)
    if leading > 1 and len(items) == len(box.shape):
        items = ["...", *items[leading:]]
    return f"[{', '.join(items)}]"


def _span_text(span: Span, size: int) -> str:
    if len(span) == size:
        return ":"
    if len(span) == 1:
        return str(span.start)
    start = "" if span.start == 0 else str(span.start)
    stop = "" if span.stop - 1 + span.step >= size else str(span.stop)
    return f"{start}:{stop}" if span.step == 1 else f"{start}:{stop}:{span.step}"


def _percent(count: int, size: int) -> str:
    """Three digits, but never 100 for a part."""
    text = f"{100 * count / size:.3g}"
    return "99.9" if text == "100" else text
