"""Union, difference and the like on regions, and the cut of a variable into atoms.

Results are canonical. Boxes and rows stay boxes and rows wherever the result is one, without a mask of the whole
variable: a frozen slab of a large embedding leaves a slab or rows to train, which is what makes `split` possible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from graphfreeze.selection.axis import (
    AxisSet,
    axis_covers,
    axis_difference,
    axis_equal,
    axis_intersection,
    axis_union,
)
from graphfreeze.selection.canonical import (
    empty_region,
    mask_region,
    points_region,
    product_region,
    simplify,
    whole_region,
)
from graphfreeze.selection.region import Points, Region, Shape

Axes: TypeAlias = tuple[AxisSet, ...]


def union(a: Region, b: Region) -> Region:
    """Elements in one region or both.

    Raises:
        ValueError: the regions have different shapes.
    """
    _same_shape(a, b)
    if a.is_whole or b.is_empty:
        return simplify(a)
    if b.is_whole or a.is_empty:
        return simplify(b)
    if a.axes is not None and b.axes is not None:
        joined = _product_union(a.shape, a.axes, b.axes)
        if joined is not None:
            return product_region(a.shape, joined)
    if isinstance(a, Points) and isinstance(b, Points):
        return points_region(a.shape, np.union1d(a.indices, b.indices))
    return mask_region(a.to_mask() | b.to_mask())


def intersection(a: Region, b: Region) -> Region:
    """Elements in both regions.

    Raises:
        ValueError: the regions have different shapes.
    """
    _same_shape(a, b)
    if a.is_whole or b.is_empty:
        return simplify(b)
    if b.is_whole or a.is_empty:
        return simplify(a)
    if a.axes is not None and b.axes is not None:
        pairs = zip(a.axes, b.axes, a.shape, strict=True)
        return product_region(a.shape, [axis_intersection(x, y, size) for x, y, size in pairs])
    for listed, other in ((a, b), (b, a)):
        if isinstance(listed, Points):
            return points_region(a.shape, listed.indices[other.contains(listed.indices)])
    return mask_region(a.to_mask() & b.to_mask())


def difference(a: Region, b: Region) -> Region:
    """Elements in ``a`` that are not in ``b``.

    >>> from graphfreeze.selection.canonical import box_region, whole_region
    >>> difference(whole_region((50, 8)), box_region((50, 8), [slice(10)])).slices
    (slice(10, 50, 1), slice(0, 8, 1))

    Raises:
        ValueError: the regions have different shapes.
    """
    _same_shape(a, b)
    if a.is_empty or b.is_whole:
        return empty_region(a.shape)
    if b.is_empty:
        return simplify(a)
    if a.axes is not None and b.axes is not None:
        left = _product_difference(a.shape, a.axes, b.axes)
        if left is not None:
            return product_region(a.shape, left)
    if isinstance(a, Points):
        return points_region(a.shape, a.indices[~b.contains(a.indices)])
    return mask_region(a.to_mask() & ~b.to_mask())


def complement(region: Region) -> Region:
    """Elements of the variable that are not in the region."""
    return difference(whole_region(region.shape), region)


def covers(a: Region, b: Region) -> bool:
    """Whether every element of ``b`` is in ``a``.

    Raises:
        ValueError: the regions have different shapes.
    """
    _same_shape(a, b)
    if a.is_whole or b.is_empty:
        return True
    if a.count < b.count:
        return False
    if a.axes is not None and b.axes is not None:
        return all(axis_covers(x, y, size) for x, y, size in zip(a.axes, b.axes, a.shape, strict=True))
    return intersection(a, b).count == b.count


def cut(shape: Shape, regions: Iterable[Region]) -> tuple[Region, ...]:
    """The atoms: the coarsest partition of a variable in which each region is a union of parts.

    Elements of the same regions share an atom; so do those of none. One region makes two atoms, itself and its
    complement. Atoms come in a fixed order: members of the first region first, and so on; none is empty.

    >>> from graphfreeze.selection.canonical import box_region
    >>> [atom.slices[0] for atom in cut((9,), [box_region((9,), [slice(0, 5)]), box_region((9,), [slice(3, 7)])])]
    [slice(3, 5, 1), slice(0, 3, 1), slice(5, 7, 1), slice(7, 9, 1)]

    Raises:
        ValueError: a region has another shape.
    """
    atoms = [whole_region(shape)]
    for region in regions:
        halves = [half for atom in atoms for half in (intersection(atom, region), difference(atom, region))]
        atoms = [half for half in halves if not half.is_empty]
    return tuple(atom for atom in atoms if not atom.is_empty)


def _product_union(shape: Shape, a: Axes, b: Axes) -> Axes | None:
    """Axes of the union if it is clearly a product: one covers the other, or they differ on one axis only."""
    differing = [at for at, (x, y) in enumerate(zip(a, b, strict=True)) if not axis_equal(x, y)]
    if len(differing) <= 1:
        return tuple(axis_union(x, y, size) for x, y, size in zip(a, b, shape, strict=True))
    if _all_cover(shape, a, b):
        return a
    return b if _all_cover(shape, b, a) else None


def _product_difference(shape: Shape, a: Axes, b: Axes) -> tuple[AxisSet | None, ...] | None:
    """Axes of ``a`` without ``b`` if that is clearly a product: they are disjoint, or ``b`` cuts one axis only."""
    common = [axis_intersection(x, y, size) for x, y, size in zip(a, b, shape, strict=True)]
    if any(axis is None for axis in common):
        return a
    crossing = [at for at in range(len(shape)) if not axis_covers(b[at], a[at], shape[at])]
    if len(crossing) > 1:
        return None
    left: list[AxisSet | None] = list(a)
    at = crossing[0] if crossing else 0
    left[at] = axis_difference(a[at], b[at], shape[at])
    return tuple(left)


def _all_cover(shape: Shape, a: Axes, b: Axes) -> bool:
    return all(axis_covers(x, y, size) for x, y, size in zip(a, b, shape, strict=True))


def _same_shape(a: Region, b: Region) -> None:
    if a.shape != b.shape:
        raise ValueError(f"regions of shapes {a.shape} and {b.shape}")
