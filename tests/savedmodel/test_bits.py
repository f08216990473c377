"""Elements whose bits differ."""

import ml_dtypes
import numpy as np
import pytest

from graphfreeze.savedmodel import differing_pieces


@pytest.mark.parametrize("piece", [1, 3, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.complex64, ml_dtypes.bfloat16])
def test_places_and_values(monkeypatch, piece, dtype):
    monkeypatch.setattr("graphfreeze.savedmodel.bits._PIECE", piece)
    a = np.zeros((2, 5), dtype)
    b = a.copy()
    b[0, 4] = b[1, 2] = 1
    found = list(differing_pieces(a, b))
    assert np.concatenate([places for places, _, _ in found]).tolist() == [4, 7]
    assert all((left == 0).all() and (right == 1).all() for _, left, right in found)
    assert not list(differing_pieces(b, b))


def test_bits_not_values():
    a = np.array([0.0, np.nan, 1.0], np.float32)
    b = np.array([-0.0, np.nan, 1.0], np.float32)
    assert [places.tolist() for places, _, _ in differing_pieces(a, b)] == [[0]]


def test_scalars_and_nothing():
    assert [p.tolist() for p, _, _ in differing_pieces(np.array(1), np.array(2))] == [[0]]
    assert not list(differing_pieces(np.zeros((0, 3)), np.zeros((0, 3))))
