"""Where two arrays differ to the bit, found piece by piece: large tensors are mapped from files, and stay there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from graphfreeze.savedmodel.bundle import Array

_PIECE = 1 << 20


def differing_pieces(a: Array, b: Array) -> Iterator[tuple[NDArray[np.int64], Array, Array]]:
    """(flat positions in C order, values of ``a``, values of ``b``) of elements whose bits differ, in pieces.

    The arrays have one shape and dtype. NaN equals the same NaN, and 0.0 differs from -0.0.
    """
    x, y = a.reshape(-1), b.reshape(-1)
    for start in range(0, x.size, _PIECE):
        left, right = x[start : start + _PIECE], y[start : start + _PIECE]
        places = np.flatnonzero(left != right if a.dtype == np.dtype(object) else bits_differ(left, right))
        if places.size:
            yield places.astype(np.int64) + start, left[places], right[places]


def bits_differ(a: Array, b: Array) -> Array:
    """Where two vectors of one dtype differ in their bytes."""
    raw = [np.ascontiguousarray(v).view(np.uint8).reshape(v.size, v.itemsize) for v in (a, b)]
    differs: Array = (raw[0] != raw[1]).any(axis=1)
    return differs
