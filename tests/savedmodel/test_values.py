"""Arrays by their bits."""

import ml_dtypes
import numpy as np

from graphfreeze.savedmodel import array_difference, differing, largest_change


def test_bits_count_and_nans_are_alike():
    one, other = np.array([0.0, np.nan, 1.0]), np.array([-0.0, -np.nan, 1.0])
    assert differing(one, other).tolist() == [True, False, False]
    assert array_difference(one, one) == ""
    assert array_difference(one, one[:2]) == "float64 [3] instead of float64 [2]"


def test_other_dtypes():
    short = np.array([1, 2], ml_dtypes.bfloat16)
    assert differing(short, np.array([1, np.nan], ml_dtypes.bfloat16)).tolist() == [False, True]
    assert differing(np.array([b"a", b"b"], object), np.array([b"a", b"c"], object)).tolist() == [False, True]
    assert differing(np.array([1 + 2j]), np.array([1 + 3j])).tolist() == [True]


def test_largest_change():
    one, other = np.array([1.0, 2.0, 3.0]), np.array([1.5, 2.0, np.nan])
    everywhere = np.ones(3, np.bool_)
    assert largest_change(one, other, np.array([True, True, False])) == 0.5
    assert largest_change(one, other, everywhere) == np.inf
    assert largest_change(one, one, everywhere) == 0
