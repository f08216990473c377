"""Builds regions in canonical form, so that one set of elements is always one value.

A set that is a product of index sets, one per axis, is recognised by counting: it lies inside the product of its
projections, hence equals it when both have as many elements. That holds for any input, so a mask loaded from a file and
a slice typed on the command line end in the same region, and in the same cheap strategy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from graphfreeze.selection.axis import (
    AxisSet,
    BoolArray,
    Indices,
    Span,
    axis_from_mask,
    axis_from_sorted,
    axis_indices,
    axis_is_full,
)
from graphfreeze.selection.region import Box, Dense, Empty, Points, Region, Rows, Shape, Whole

SPARSE_FACTOR = 32
"""A list of positions is kept while it names less than one element in this many; above that a mask is smaller."""


def whole_region(shape: Shape) -> Region:
    """Every element; `Empty` where the variable has none."""
    return Whole(tuple(shape)) if math.prod(shape) else Empty(tuple(shape))


def empty_region(shape: Shape) -> Region:
    """No element."""
    return Empty(tuple(shape))


def box_region(shape: Shape, slices: Sequence[slice]) -> Region:
    """The elements that numpy's ``array[slices]`` selects; bounds beyond an axis are clipped, missing axes are full.

    >>> box_region((4, 6), [slice(None), slice(2, 4)]).slices
    (slice(0, 4, 1), slice(2, 4, 1))

    Raises:
        ValueError: more slices than axes, or a negative step.
    """
    if len(slices) > len(shape):
        raise ValueError(f"{len(slices)} slices for shape {shape}")
    padded = [*slices, *[slice(None)] * (len(shape) - len(slices))]
    ranges = [range(*piece.indices(size)) for piece, size in zip(padded, shape, strict=True)]
    return product_region(shape, [Span.of(indices) if indices else None for indices in ranges])


def rows_region(shape: Shape, axis: int, indices: Iterable[int] | Indices) -> Region:
    """The listed indices (any order, repeats allowed) on one axis, everything on the others.

    >>> rows_region((9, 2), 0, [7, 1, 4])
    Box(shape=(9, 2), spans=(Span(start=1, stop=8, step=3), Span(start=0, stop=2, step=1)))

    Raises:
        ValueError: no such axis, or an index outside it.
    """
    if not 0 <= axis < len(shape):
        raise ValueError(f"no axis {axis} in shape {shape}")
    listed = _unique(indices, shape[axis])
    full: list[AxisSet | None] = [Span(0, size) if size else None for size in shape]
    full[axis] = axis_from_sorted(listed)
    return product_region(shape, full)


def points_region(shape: Shape, flat: Iterable[int] | Indices) -> Region:
    """The elements at flat positions in C order (any order, repeats allowed).

    Raises:
        ValueError: a position outside the variable.
    """
    positions = _unique(flat, math.prod(shape))
    if len(positions) == 0 or len(positions) == math.prod(shape):
        return whole_region(shape) if len(positions) else Empty(tuple(shape))
    found = _product_axes([axis_from_sorted(np.unique(x)) for x in np.unravel_index(positions, shape)], len(positions))
    if found is not None and _structured(shape, found):
        return product_region(shape, found)
    return _unstructured(tuple(shape), positions)


def mask_region(mask: BoolArray) -> Region:
    """The elements where the mask is true.

    >>> mask_region(np.array([[False, True], [False, True]])).slices
    (slice(0, 2, 1), slice(1, 2, 1))
    """
    shape, count = mask.shape, int(np.count_nonzero(mask))
    if count == 0 or count == mask.size:
        return whole_region(shape) if count else Empty(shape)
    others = [tuple(other for other in range(mask.ndim) if other != axis) for axis in range(mask.ndim)]
    found = _product_axes([axis_from_mask(np.asarray(mask.any(axis=other))) for other in others], count)
    if found is not None and _structured(shape, found):
        return product_region(shape, found)
    if count * SPARSE_FACTOR < mask.size:
        return Points(shape, np.flatnonzero(mask).astype(np.int64))
    return Dense(shape, mask)


def product_region(shape: Shape, axes: Sequence[AxisSet | None]) -> Region:
    """The product of one index set per axis; None stands for the empty set.

    Raises:
        ValueError: another number of sets than axes, or a set that leaves its axis.
    """
    shape = tuple(shape)
    if len(axes) != len(shape):
        raise ValueError(f"{len(axes)} index sets for shape {shape}")
    sets = [axis for axis in axes if axis is not None]
    if len(sets) < len(axes):
        return Empty(shape)
    if all(axis_is_full(axis, size) for axis, size in zip(sets, shape, strict=True)):
        return Whole(shape)
    spans = tuple(axis for axis in sets if isinstance(axis, Span))
    if len(spans) == len(sets):
        return Box(shape, spans)
    if _structured(shape, sets):
        at, listed = next((at, axis) for at, axis in enumerate(sets) if not isinstance(axis, Span))
        return Rows(shape, at, listed)
    grid = np.ix_(*[axis_indices(axis) for axis in sets])
    return _unstructured(shape, np.ravel_multi_index(grid, shape).reshape(-1).astype(np.int64))


def simplify(region: Region) -> Region:
    """The canonical region of the same elements."""
    if region.axes is not None:
        return product_region(region.shape, [x if isinstance(x, Span) else axis_from_sorted(x) for x in region.axes])
    if isinstance(region, Points):
        return points_region(region.shape, region.indices)
    return mask_region(region.mask) if isinstance(region, Dense) else empty_region(region.shape)


def _product_axes(projections: Sequence[AxisSet | None], count: int) -> list[AxisSet] | None:
    """The projections of a set of ``count`` elements if the set is their product."""
    sets = [axis for axis in projections if axis is not None]
    return sets if math.prod(len(axis) for axis in sets) == count else None


def _structured(shape: Shape, axes: Sequence[AxisSet]) -> bool:
    """Whether a product is a box, or rows of one axis."""
    listed = [not isinstance(axis, Span) for axis in axes]
    partial = [not axis_is_full(axis, size) for axis, size in zip(axes, shape, strict=True)]
    return not any(listed) or (sum(listed) == 1 and sum(partial) == 1)


def _unstructured(shape: Shape, positions: Indices) -> Region:
    """Sorted positions that form neither a box nor rows."""
    if len(positions) * SPARSE_FACTOR < math.prod(shape):
        return Points(shape, positions)
    mask = np.zeros(math.prod(shape), dtype=np.bool_)
    mask[positions] = True
    return Dense(shape, mask.reshape(shape))


def _unique(indices: Iterable[int] | Indices, size: int) -> Indices:
    listed = np.unique(np.asarray(indices if isinstance(indices, np.ndarray) else list(indices), dtype=np.int64))
    if len(listed) and not 0 <= listed[0] <= listed[-1] < size:
        raise ValueError(f"an index lies outside 0..{size - 1}")
    return listed
