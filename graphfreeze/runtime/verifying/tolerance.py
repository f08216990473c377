"""How arrays differ by more than another order of the same sums explains."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphfreeze.savedmodel import array_difference

_FACTOR = 16.0
"""How many eps of the largest element values may differ by where TensorFlow adds several in another order."""


def near_difference(actual: NDArray[Any], expected: NDArray[Any]) -> str:
    """The first difference, in words; nothing where floats are near enough. What holds no floats must be equal."""
    words = array_difference(actual, expected)
    if not words or actual.shape != expected.shape or actual.dtype != expected.dtype or actual.dtype.kind in "OSUbiu":
        return words
    from ml_dtypes import finfo

    wide = np.complex128 if actual.dtype.kind == "c" else np.float64
    one, other = actual.astype(wide), expected.astype(wide)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        off = np.where(same, 0, np.abs(one - other))
    eps = float(finfo(actual.real.dtype).eps)  # type: ignore[no-untyped-call]
    bound = _FACTOR * eps * float(np.max(np.abs(np.where(np.isfinite(other), other, 0)), initial=0.0))
    return "" if float(np.max(off, initial=0.0)) <= bound else words
