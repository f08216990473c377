"""Geometry arrays say what regions say."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfreeze.lowering.geometry import full_geometry, full_rows, gather_geometry, live_rows, row_set
from graphfreeze.selection import Box, Dense, Points, Rows, mask_region, rows_region, whole_region
from graphfreeze.selection.axis import Span, axis_indices
from tests.lowering.regions import shapes_and_masks


def rows_of(mask):
    return np.flatnonzero(mask.reshape(mask.shape[0], -1).any(axis=1))


@given(shapes_and_masks())
def test_row_sets(mask):
    if not mask.any():
        return
    region = mask_region(mask)
    found = row_set(region)
    assert np.array_equal(axis_indices(found.rows), rows_of(mask))
    if found.spans is not None:
        inside = np.zeros(mask.shape[1:], bool)
        inside[tuple(s.as_slice for s in found.spans)] = True
        assert (mask[rows_of(mask)] == inside).all()
        assert full_rows(region, found) == inside.all()
    else:
        assert not full_rows(region, found)


@given(shapes_and_masks())
def test_full_geometry(mask):
    region = mask_region(mask)
    arrays = full_geometry(region, "x")
    match region:
        case Rows():
            assert list(arrays) == ["x/indices", "x/flags"][: 1 + (region.axis > 0)]
            assert np.array_equal(arrays["x/indices"], region.indices)
            if region.axis > 0:
                assert np.array_equal(np.broadcast_to(arrays["x/flags"], mask.shape), mask)
        case Points():
            assert list(arrays) == ["x/indices"]
            assert np.array_equal(arrays["x/indices"], np.flatnonzero(mask))
        case Dense():
            assert list(arrays) == ["x/bits"]
            row = int(np.prod(mask.shape[1:]))
            flags = np.unpackbits(arrays["x/bits"], axis=1, bitorder="little", count=row)
            assert np.array_equal(flags.astype(bool).reshape(mask.shape), mask)
            assert arrays["x/bits"].shape == (mask.shape[0], -(-row // 8))
        case _:
            assert arrays == {}


@settings(max_examples=100)
@given(shapes_and_masks(), st.booleans())
def test_gather_geometry(mask, with_values):
    region = mask_region(mask)
    if region.is_empty or region.is_whole:
        return
    arrays = gather_geometry(region, "x", with_values=with_values)
    found, rows = row_set(region), rows_of(mask)
    if isinstance(region, Rows) and region.axis > 0:
        assert arrays.keys() == full_geometry(region, "x").keys() == {"x/indices", "x/flags"}
        return
    assert ("x/map" in arrays) == isinstance(found.rows, np.ndarray)
    if "x/map" in arrays:
        assert arrays["x/map"].dtype == np.int32
        wanted = np.full(mask.shape[0], -1)
        wanted[rows] = np.arange(len(rows))
        assert np.array_equal(arrays["x/map"], wanted)
    if found.spans is not None:
        assert set(arrays) <= {"x/map"}
        return
    held = mask.reshape(mask.shape[0], -1)[rows]
    (bits,) = (arrays[k] for k in ("x/bits", "x/row_bits") if k in arrays)
    assert np.array_equal(np.unpackbits(bits, axis=1, bitorder="little", count=held.shape[1]).astype(bool), held)
    assert ("x/starts" in arrays) == with_values
    if with_values:
        flat = region.take(np.arange(mask.size).reshape(mask.shape))
        for row, start in enumerate(arrays["x/starts"]):
            count = int(held[row].sum())
            numbers = np.flatnonzero(held[row]) + rows[row] * held.shape[1]
            assert np.array_equal(flat[start : start + count], numbers)


@given(shapes_and_masks())
def test_bits_for_both_paths_are_shared_where_all_rows_are_held(mask):
    region = mask_region(mask)
    if not isinstance(region, Dense):
        return
    both = full_geometry(region, "x") | gather_geometry(region, "x", with_values=False)
    assert ("x/row_bits" in both) == (len(rows_of(mask)) < mask.shape[0])
    assert "x/bits" in both


@given(shapes_and_masks())
def test_live_rows(mask):
    region = mask_region(mask)
    found = live_rows(region)
    rows = rows_of(mask) if mask.any() else np.array([])
    if found is None:
        assert region.is_empty or len(rows) == mask.shape[0]
    else:
        assert np.array_equal(axis_indices(found), rows)


def test_live_rows_of_a_scalar():
    assert live_rows(whole_region(())) is None


def test_rows_are_spans_where_they_can_be():
    assert row_set(rows_region((9, 2), 0, [1, 4, 7])).rows == Span(1, 8, 3)
    assert isinstance(rows_region((9, 2), 0, [1, 4, 7]), Box)


def test_indices_are_narrow():
    small = full_geometry(rows_region((100, 2), 0, [0, 1, 5]), "x")["x/indices"]
    assert small.dtype == np.int32
    wide = Points((2**17, 2**15), np.array([0, 2**31 + 5]))
    assert full_geometry(wide, "x")["x/indices"].dtype == np.int64
