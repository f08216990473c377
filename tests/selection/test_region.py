"""The region algebra against numpy boolean masks."""

import json
import math
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfreeze.selection import algebra, canonical
from graphfreeze.selection.axis import Span, axis_from_mask, axis_indices
from graphfreeze.selection.encoding import describe, region_from_dict, region_to_dict
from graphfreeze.selection.region import Box, Dense, Empty, Points, Rows, Whole

FAST = settings(max_examples=60, deadline=None)
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple) | st.just((200,)) | st.just((40, 9))


@st.composite
def slices(draw, size):
    start, stop = sorted((draw(st.integers(0, size)), draw(st.integers(0, size))))
    return draw(st.just(slice(None)) | st.just(slice(start, stop, draw(st.integers(1, 3)))))


@st.composite
def masks(draw, shape):
    """Masks of every kind of region, and of no kind."""
    mask = np.zeros(shape, np.bool_)
    if not shape:
        return np.array(draw(st.booleans()))
    kind = draw(st.sampled_from(["box", "rows", "points", "dense", "all", "grid"]))
    if kind == "all":
        mask[...] = True
    elif kind == "box":
        mask[tuple(draw(slices(size)) for size in shape)] = True
    elif kind == "rows":
        axis = draw(st.integers(0, len(shape) - 1))
        rows = draw(st.lists(st.booleans(), min_size=shape[axis], max_size=shape[axis]))
        mask[(slice(None),) * axis + (np.array(rows, np.bool_),)] = True
    elif kind == "grid":
        mask[np.ix_(*[np.random.default_rng(draw(st.integers(0, 99))).random(size) < 0.6 for size in shape])] = True
    else:
        share = 0.5 if kind == "dense" else 0.02
        mask = np.random.default_rng(draw(st.integers(0, 999))).random(shape) < share
    return mask


@st.composite
def regions(draw, shape):
    return canonical.mask_region(draw(masks(shape)))


@st.composite
def pairs(draw):
    shape = draw(SHAPES)
    return draw(masks(shape)), draw(masks(shape))


one = SHAPES.flatmap(masks)


@FAST
@given(one)
def test_mask_survives(mask):
    region = canonical.mask_region(mask)
    assert region.shape == mask.shape
    assert np.array_equal(region.to_mask(), mask)
    assert region.count == mask.sum()
    assert region.is_whole == mask.all()
    assert region.is_empty == (not mask.any())


@FAST
@given(one)
def test_every_way_to_build_gives_the_same_region(mask):
    region = canonical.mask_region(mask)
    flat = np.flatnonzero(mask)
    assert canonical.points_region(mask.shape, flat) == region
    assert canonical.simplify(region) == region
    assert canonical.simplify(Dense(mask.shape, mask)) == region
    if len(flat):
        assert canonical.simplify(Points(mask.shape, flat)) == region
    if region.axes is not None:
        assert canonical.product_region(mask.shape, region.axes) == region
    assert hash(canonical.points_region(mask.shape, flat)) == hash(region)


@FAST
@given(one)
def test_kind_is_the_first_that_fits(mask):
    region = canonical.mask_region(mask)
    if mask.size == 0 or not mask.any():
        assert isinstance(region, Empty)
    elif mask.all():
        assert isinstance(region, Whole)
    elif isinstance(region, Box):
        expected = np.zeros_like(mask)
        expected[region.slices] = True
        assert np.array_equal(mask, expected)
    else:
        assert not _is_box(mask)
        assert isinstance(region, Rows) == _is_rows(mask)
        if not isinstance(region, Rows):
            assert isinstance(region, Points) == (32 * mask.sum() < mask.size)


def _is_box(mask):
    projections = [np.flatnonzero(p) for p in _projections(mask)]
    return math.prod(map(len, projections)) == mask.sum() and all(len(set(np.diff(p))) <= 1 for p in projections)


def _is_rows(mask):
    partial = [p for p in _projections(mask) if not p.all()]
    return len(partial) == 1 and mask.sum() * len(partial[0]) == partial[0].sum() * mask.size


def _projections(mask):
    return [mask.any(axis=tuple(o for o in range(mask.ndim) if o != axis)) for axis in range(mask.ndim)]


@pytest.mark.parametrize(
    ("function", "on_masks"),
    [
        (algebra.union, operator.or_),
        (algebra.intersection, operator.and_),
        (algebra.difference, lambda a, b: a & ~b),
    ],
)
@FAST
@given(pairs())
def test_operations(function, on_masks, pair):
    a, b = pair
    result = function(canonical.mask_region(a), canonical.mask_region(b))
    assert result == canonical.mask_region(np.asarray(on_masks(a, b)))


@FAST
@given(pairs())
def test_covers_and_equality(pair):
    a, b = map(canonical.mask_region, pair)
    assert algebra.covers(a, b) == (not (pair[1] & ~pair[0]).any())
    assert (a == b) == np.array_equal(*pair)
    assert algebra.covers(algebra.union(a, b), a)


@FAST
@given(one)
def test_complement(mask):
    region = canonical.mask_region(mask)
    assert algebra.complement(region) == canonical.mask_region(~mask)
    assert algebra.complement(algebra.complement(region)) == region


@FAST
@given(one)
def test_contains(mask):
    flat = np.arange(mask.size)
    assert np.array_equal(canonical.mask_region(mask).contains(flat), mask.reshape(-1))


@FAST
@given(SHAPES.flatmap(lambda shape: st.tuples(st.just(shape), st.lists(masks(shape), max_size=4))))
def test_cut_is_the_coarsest_partition(case):
    shape, chosen = case
    atoms = algebra.cut(shape, map(canonical.mask_region, chosen))
    total = sum((atom.to_mask().astype(int) for atom in atoms), np.zeros(shape, int))
    assert (total == 1).all()
    assert not any(atom.is_empty for atom in atoms)
    membership = [tuple(bool(mask[place]) for mask in chosen) for place in np.ndindex(shape)]
    assert len(atoms) == len(set(membership))
    for atom in atoms:
        for mask in map(canonical.mask_region, chosen):
            assert algebra.covers(mask, atom) or algebra.intersection(mask, atom).is_empty


@FAST
@given(one)
def test_cut_by_one_region(mask):
    region = canonical.mask_region(mask)
    halves = [region, algebra.complement(region)]
    assert list(algebra.cut(mask.shape, [region])) == [half for half in halves if not half.is_empty]


@FAST
@given(one)
def test_take_and_put(mask):
    region = canonical.mask_region(mask)
    array = np.arange(mask.size, dtype=np.float32).reshape(mask.shape)
    before = array.copy()
    values = region.take(array)
    assert values.shape == region.storage_shape
    assert np.array_equal(values.reshape(-1), array[mask])
    put = region.put(array, -values - 1)
    assert np.array_equal(put, np.where(mask, -array - 1, array))
    assert np.array_equal(region.put(put, values), array)
    values[...] = 77
    assert np.array_equal(array, before)


@FAST
@given(one)
def test_encoding_round_trip(mask):
    region = canonical.mask_region(mask)
    data = json.loads(json.dumps(region_to_dict(region)))
    assert region_from_dict(data) == region


@pytest.mark.parametrize(
    ("region", "kind", "storage"),
    [
        (canonical.whole_region((3, 4)), Whole, (3, 4)),
        (canonical.whole_region(()), Whole, ()),
        (canonical.empty_region((3, 4)), Empty, (0,)),
        (canonical.whole_region((0, 4)), Empty, (0,)),
        (canonical.box_region((8, 4), [slice(2, 6)]), Box, (4, 4)),
        (canonical.box_region((8, 4), []), Whole, (8, 4)),
        (canonical.rows_region((8, 4), 0, [1, 3, 5]), Box, (3, 4)),
        (canonical.rows_region((8, 4), 0, [5, 0, 5, 1]), Rows, (3, 4)),
        (canonical.rows_region((8, 4), 1, [0, 1, 3]), Rows, (8, 3)),
        (canonical.points_region((8, 4), [0, 5]), Dense, (2,)),
        (canonical.points_region((80, 4), [0, 5]), Points, (2,)),
        (canonical.points_region((80, 4), [7]), Box, (1, 1)),
        (canonical.points_region((80, 4), range(320)), Whole, (80, 4)),
    ],
)
def test_kinds(region, kind, storage):
    assert type(region) is kind
    assert region.storage_shape == storage


def test_a_slab_of_a_huge_table_needs_no_mask():
    shape = (10**9, 10**6)
    frozen = canonical.box_region(shape, [slice(5 * 10**8)])
    rest = algebra.complement(frozen)
    assert isinstance(rest, Box)
    assert rest.storage_shape == (5 * 10**8, 10**6)
    assert algebra.union(frozen, rest).is_whole
    assert algebra.intersection(frozen, rest).is_empty
    assert algebra.cut(shape, [frozen]) == (frozen, rest)
    assert algebra.covers(rest, canonical.box_region(shape, [slice(-1, None), slice(3)]))


def test_rows_of_a_tall_table_need_no_mask():
    shape = (10**6, 10**9)
    frozen = canonical.rows_region(shape, 0, [1, 2, 10])
    rest = algebra.complement(frozen)
    assert isinstance(rest, Rows)
    assert rest.storage_shape == (10**6 - 3, 10**9)
    assert algebra.complement(rest) == frozen


@pytest.mark.parametrize(
    ("region", "text"),
    [
        (canonical.box_region((90000, 8), [slice(50000)]), "[:50000]"),
        (canonical.box_region((64, 256), [slice(None), slice(64, 128)]), "[:, 64:128]"),
        (canonical.box_region((3, 3, 8, 8), [slice(None)] * 3 + [slice(None, None, 2)]), "[..., ::2]"),
        (canonical.box_region((3, 3, 8, 8), [slice(None)] * 2 + [slice(4)]), "[:, :, :4]"),
        (canonical.box_region((9,), [slice(1, None, 3)]), "[1::3]"),
        (canonical.box_region((9,), [slice(1, 5, 3)]), "[1:5:3]"),
        (canonical.box_region((9, 2), [slice(4, 5)]), "[4]"),
        (canonical.rows_region((9000, 2), 0, [*range(1023), 2000]), "1,024 rows of axis 0"),
        (canonical.points_region((90, 90), [1, 2, 3, 90, 500, 600, 900]), "7 points"),
        (canonical.mask_region(np.eye(8, dtype=np.bool_)), "mask (12.5 %)"),
        (canonical.mask_region(~np.eye(4000, dtype=np.bool_)), "mask (99.9 %)"),
        (canonical.whole_region((3,)), "whole"),
        (canonical.empty_region((3,)), "nothing"),
    ],
)
def test_describe(region, text):
    assert describe(region) == text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Span(0, 0), "not a span: 0:0:1"),
        (lambda: Span(0, 6, 2), "not in normal form: 0:6:2"),
        (lambda: Span.of(range(0)), "a span must be ascending and not empty, found range(0, 0)"),
        (lambda: Box((3,), ()), "0 spans for shape (3,)"),
        (lambda: Box((3,), (Span(0, 4),)), "box (Span(start=0, stop=4, step=1),) leaves shape (3,)"),
        (lambda: Rows((3,), 1, np.array([0])), "no axis 1 in shape (3,)"),
        (lambda: Rows((3,), 0, np.array([1, 0])), "indices must be a sorted, unique, not empty list below 3"),
        (lambda: Points((3,), np.array([3])), "indices must be a sorted, unique, not empty list below 3"),
        (lambda: Points((3,), np.array([], int)), "indices must be a sorted, unique, not empty list below 3"),
        (lambda: Dense((3,), np.zeros(3)), "mask of float64 (3,) for shape (3,)"),
        (lambda: canonical.box_region((3,), [slice(1), slice(1)]), "2 slices for shape (3,)"),
        (lambda: canonical.rows_region((3,), 1, [0]), "no axis 1 in shape (3,)"),
        (lambda: canonical.rows_region((3,), 0, [3]), "an index lies outside 0..2"),
        (lambda: canonical.points_region((3,), [-1]), "an index lies outside 0..2"),
        (lambda: canonical.product_region((3,), []), "0 index sets for shape (3,)"),
        (
            lambda: algebra.union(canonical.whole_region((3,)), canonical.whole_region((4,))),
            "regions of shapes (3,) and (4,)",
        ),
        (
            lambda: canonical.whole_region((3,)).take(np.zeros(4)),
            "array of shape (4,) for a region of shape (3,)",
        ),
        (
            lambda: canonical.whole_region((3,)).put(np.zeros(3), np.zeros(2)),
            "values of shape (2,) for a region stored as (3,)",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value) == message


def test_arrays_inside_are_copies_and_read_only():
    mask = np.eye(3, dtype=np.bool_)
    region = canonical.mask_region(mask)
    mask[0, 1] = True
    assert region.count == 3
    with pytest.raises(ValueError):
        region.mask[0, 0] = False
    with pytest.raises(ValueError):
        canonical.rows_region((9,), 0, [0, 1, 3]).indices[0] = 2


@FAST
@given(st.lists(st.booleans(), max_size=30))
def test_axis_sets(flags):
    mask = np.array(flags, np.bool_)
    axis = axis_from_mask(mask)
    if axis is None:
        assert not mask.any()
    else:
        assert np.array_equal(axis_indices(axis), np.flatnonzero(mask))
        assert isinstance(axis, Span) == (len(set(np.diff(np.flatnonzero(mask)))) <= 1)


def test_regions_of_one_kind_differ_by_their_elements():
    a, b = canonical.box_region((9,), [slice(3)]), canonical.box_region((9,), [slice(3, 6)])
    assert a != b
    assert hash(a) == hash(b)
    assert a != "a region"
    assert canonical.whole_region((2, 3)) != canonical.whole_region((3, 2))
