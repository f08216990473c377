"""Two arrays compared by their bits: a value that changed its bits has moved, though 0.0 == -0.0."""

from __future__ import annotations

import numpy as np

from graphfreeze.savedmodel.bits import bits_differ
from graphfreeze.savedmodel.bundle import Array


def array_difference(actual: Array, expected: Array) -> str:
    """How two arrays differ; nothing where they have the same bits, or are NaN at the same places."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return f"{actual.dtype} {list(actual.shape)} instead of {expected.dtype} {list(expected.shape)}"
    differs = differing(actual, expected)
    if not differs.any():
        return ""
    first = tuple(int(i) for i in np.argwhere(differs)[0])
    return (
        f"{int(differs.sum()):,} of {differs.size:,} elements differ, first at {list(first)}: "
        f"{actual[first]} instead of {expected[first]}"
    )


def differing(actual: Array, expected: Array) -> Array:
    """Where two arrays of one shape and dtype differ in their bits, NaN excepted."""
    if actual.dtype.kind in "OSU":
        return np.asarray(actual != expected)
    differs = bits_differ(actual.reshape(-1), expected.reshape(-1)).reshape(actual.shape)
    if actual.dtype.kind in "fcV":  # V: bfloat16 and other types of ml_dtypes
        differs &= ~(np.isnan(actual) & np.isnan(expected))
    return differs


def largest_change(one: Array, other: Array, where: Array) -> float:
    """The largest absolute difference at some elements; inf where one of them is no number and has changed."""
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    moved = differing(one, other) & where
    if not moved.any():
        return 0.0
    off = np.abs(one[moved].astype(wide) - other[moved].astype(wide))
    return float(np.max(np.where(np.isnan(off), np.inf, off)))
