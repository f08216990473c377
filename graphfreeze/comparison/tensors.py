"""Compares stored tensors, piece by piece: neither is in memory whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from graphfreeze.comparison.difference import Change, ValueChange
from graphfreeze.savedmodel import OBJECT_GRAPH_KEY, Array, Bundle, differing_pieces, dtype_name
from graphfreeze.selection import Region


def tensor_differences(a: Bundle | None, b: Bundle | None, names: Mapping[str, str]) -> Iterator[Change | ValueChange]:
    """Tensors that only one has, that changed type or shape, and those whose bits differ. ``names`` is by key."""
    one = {} if a is None else dict(a.entries)
    other = {} if b is None else dict(b.entries)
    for key in [*one, *(k for k in other if k not in one)]:
        if key == OBJECT_GRAPH_KEY:
            continue
        if key not in other or b is None:
            yield Change("tensor", "removed", key)
        elif key not in one or a is None:
            yield Change("tensor", "added", key)
        elif a.data_type(key) != b.data_type(key):
            types = dtype_name(a.data_type(key)), dtype_name(b.data_type(key))
            yield Change("tensor", "changed", key, f"{types[0]} -> {types[1]}")
        elif a.shape(key) != b.shape(key):
            yield Change("tensor", "changed", key, f"shape {list(a.shape(key))} -> {list(b.shape(key))}")
        else:
            found = value_change(names.get(key, key), key, a.read_tensor(key), b.read_tensor(key))
            if found is not None:
                yield found


def value_change(name: str, key: str, a: Array, b: Array, region: Region | None = None) -> ValueChange | None:
    """How two arrays of one type and shape differ, in a region or all of it; None where all bits are the same."""
    changed, largest = 0, 0.0
    for places, left, right in differing_pieces(a, b):
        inside = slice(None) if region is None else region.contains(places)
        left, right = left[inside], right[inside]
        changed += left.size
        if left.size and a.dtype != np.dtype(object):
            largest = _larger(largest, _distance(left, right))
    if not changed:
        return None
    elements = a.size if region is None else region.count
    return ValueChange(name, key, elements, changed, None if a.dtype == np.dtype(object) else largest)


def _distance(a: Array, b: Array) -> float:
    wide = np.complex128 if np.iscomplexobj(a) else np.float64
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.max(np.abs(a.astype(wide) - b.astype(wide))))


def _larger(a: float, b: float) -> float:
    """The larger of two; a value that is no number stays."""
    return a if math.isnan(a) or (b <= a) else b
