"""Sets of indices along one axis: the parts that structured regions are made of.

Most freezes name a slab of rows or columns. Holding such a set as ``start:stop:step`` keeps the algebra of a table of
millions of rows free of arrays; only sets without a pattern are held as a sorted list of indices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

Indices: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Span:
    """The non-empty arithmetic progression ``range(start, stop, step)``, in normal form.

    Normal form: ``stop`` is one past the last element, and ``step`` is 1 for a single element, so equal sets are equal.

    >>> Span.of(range(0, 10, 4))
    Span(start=0, stop=9, step=4)
    >>> Span.of(range(3, 5, 7))
    Span(start=3, stop=4, step=1)
    """

    start: int
    stop: int
    step: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop or self.step < 1:
            raise ValueError(f"not a span: {self.start}:{self.stop}:{self.step}")
        last = range(self.start, self.stop, self.step)[-1]
        if last + 1 != self.stop or (last == self.start and self.step != 1):
            raise ValueError(f"not in normal form: {self.start}:{self.stop}:{self.step}")

    @classmethod
    def of(cls, indices: range) -> Span:
        """The span that holds exactly ``indices`` (ascending, not empty).

        Raises:
            ValueError: the range is empty, descending or negative.
        """
        if not indices or indices.step < 1:
            raise ValueError(f"a span must be ascending and not empty, found {indices}")
        return cls(indices.start, indices[-1] + 1, indices.step if len(indices) > 1 else 1)

    def __len__(self) -> int:
        return len(self.as_range)

    @property
    def as_range(self) -> range:
        """The indices as a Python range."""
        return range(self.start, self.stop, self.step)

    @property
    def as_slice(self) -> slice:
        """The indices as a slice for numpy."""
        return slice(self.start, self.stop, self.step)


AxisSet: TypeAlias = Span | Indices
"""A non-empty set of indices: a span, or a sorted unique list that is no arithmetic progression."""


def axis_indices(axis: AxisSet) -> Indices:
    """All indices of the set, ascending."""
    if isinstance(axis, Span):
        return np.arange(axis.start, axis.stop, axis.step, dtype=np.int64)
    return axis


def axis_slicer(axis: AxisSet) -> slice | Indices:
    """What to write in a numpy subscript to select the set."""
    return axis.as_slice if isinstance(axis, Span) else axis


def axis_is_full(axis: AxisSet, size: int) -> bool:
    """Whether the set holds every index of an axis of ``size`` elements."""
    return len(axis) == size


def axis_equal(a: AxisSet, b: AxisSet) -> bool:
    """Whether both hold the same indices."""
    if isinstance(a, Span) or isinstance(b, Span):
        return isinstance(a, Span) and isinstance(b, Span) and a == b
    return bool(np.array_equal(a, b))


def axis_has(axis: AxisSet, values: Indices) -> BoolArray:
    """For each value whether the set holds it."""
    if isinstance(axis, Span):
        inside: BoolArray = (values >= axis.start) & (values < axis.stop)
        return np.asarray(inside & ((values - axis.start) % axis.step == 0), dtype=np.bool_)
    return contains_sorted(axis, values)


def contains_sorted(sorted_values: Indices, values: Indices) -> BoolArray:
    """For each value whether the sorted, non-empty list holds it."""
    at = np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)
    return np.asarray(sorted_values[at] == values, dtype=np.bool_)


def axis_mask(axis: AxisSet, size: int) -> BoolArray:
    """The set as one flag per index of an axis of ``size`` elements."""
    mask = np.zeros(size, dtype=np.bool_)
    mask[axis_slicer(axis)] = True
    return mask


def axis_from_mask(mask: BoolArray) -> AxisSet | None:
    """The set of the true flags in its most structured form; None when there is none."""
    count = int(np.count_nonzero(mask))
    if count == 0:
        return None
    first = int(mask.argmax())
    last = len(mask) - 1 - int(mask[::-1].argmax())
    found = _progression(first, last, count)
    if found is not None and bool(mask[found.as_slice].all()):
        return found
    return np.flatnonzero(mask).astype(np.int64)


def axis_from_sorted(indices: Indices) -> AxisSet | None:
    """The set of sorted unique indices in its most structured form; None when there is none.

    >>> axis_from_sorted(np.array([1, 4, 7]))
    Span(start=1, stop=8, step=3)
    """
    if len(indices) == 0:
        return None
    found = _progression(int(indices[0]), int(indices[-1]), len(indices))
    if found is not None and np.array_equal(axis_indices(found), indices):
        return found
    return indices


def axis_intersection(a: AxisSet, b: AxisSet, size: int) -> AxisSet | None:
    """Indices in both sets; None when there is none."""
    if _contiguous(a) and _contiguous(b):
        start, stop = max(a.start, b.start), min(a.stop, b.stop)
        return Span(start, stop) if start < stop else None
    if axis_is_full(a, size):
        return b
    if axis_is_full(b, size):
        return a
    return axis_from_mask(axis_mask(a, size) & axis_mask(b, size))


def axis_union(a: AxisSet, b: AxisSet, size: int) -> AxisSet:
    """Indices in one set or both."""
    if axis_equal(a, b) or axis_is_full(a, size):
        return a
    if axis_is_full(b, size):
        return b
    if _contiguous(a) and _contiguous(b) and max(a.start, b.start) <= min(a.stop, b.stop):
        return Span(min(a.start, b.start), max(a.stop, b.stop))
    joined = axis_from_mask(axis_mask(a, size) | axis_mask(b, size))
    assert joined is not None, "a union of non-empty sets is not empty"
    return joined


def axis_difference(a: AxisSet, b: AxisSet, size: int) -> AxisSet | None:
    """Indices in ``a`` that are not in ``b``; None when there is none."""
    if axis_is_full(b, size):
        return None
    if _contiguous(a) and _contiguous(b):
        if b.stop <= a.start or a.stop <= b.start:
            return a
        if b.start <= a.start:
            return Span(b.stop, a.stop) if b.stop < a.stop else None
        if b.stop >= a.stop:
            return Span(a.start, b.start)
    return axis_from_mask(axis_mask(a, size) & ~axis_mask(b, size))


def axis_covers(a: AxisSet, b: AxisSet, size: int) -> bool:
    """Whether ``a`` holds every index of ``b``."""
    return axis_is_full(a, size) or axis_equal(a, b) or axis_difference(b, a, size) is None


def _progression(first: int, last: int, count: int) -> Span | None:
    """The only progression with these ends and this many elements."""
    if count == 1:
        return Span(first, first + 1)
    step, rest = divmod(last - first, count - 1)
    return Span(first, last + 1, step) if rest == 0 else None


def _contiguous(axis: AxisSet) -> TypeGuard[Span]:
    return isinstance(axis, Span) and axis.step == 1
