"""Regions: sets of elements of one variable, held in the most structured form that fits.

The form decides how cheaply a region can be stored and merged, so it is part of the value:

| kind     | elements                                                    | storage                          |
|----------|-------------------------------------------------------------|----------------------------------|
| `Empty`  | none                                                        | nothing                          |
| `Whole`  | all                                                         | the variable itself              |
| `Box`    | ``start:stop:step`` on every axis                           | a smaller array of the same rank |
| `Rows`   | listed indices on one axis, everything on the others        | the array with that axis shorter |
| `Points` | listed flat positions, in C order                           | a vector                         |
| `Dense`  | where a mask of the variable's shape is true                | a vector                         |

Classes here only check that they are well formed. `graphfreeze.selection.canonical` builds regions and always picks
the first kind of this table that fits (`Points` below one element in 32); among such regions ``==`` means the same
elements.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphfreeze.selection.axis import (
    AxisSet,
    BoolArray,
    Indices,
    Span,
    axis_has,
    contains_sorted,
)

Shape: TypeAlias = tuple[int, ...]
AnyArray: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Region(ABC):
    """A set of elements of a variable of a static shape. Immutable; arrays inside are read-only."""

    shape: Shape
    """Shape of the variable."""

    @property
    def size(self) -> int:
        """Number of elements of the variable."""
        return math.prod(self.shape)

    @property
    def count(self) -> int:
        """Number of elements of the region."""
        return math.prod(self.storage_shape)

    @property
    def is_whole(self) -> bool:
        """Whether every element is in the region, as is true of any region of a variable without elements."""
        return self.count == self.size

    @property
    def is_empty(self) -> bool:
        """Whether no element is in the region."""
        return self.count == 0

    @property
    def storage_shape(self) -> Shape:
        """Shape of what `take` gives."""
        return self._storage_shape()

    @property
    def axes(self) -> tuple[AxisSet, ...] | None:
        """One index set per axis whose product is the region; None where it is held otherwise, or is empty."""
        return self._axes()

    def contains(self, flat: Indices) -> BoolArray:
        """For each flat position (C order) whether it is in the region."""
        axes = self.axes
        if axes is None:
            return self._contains(flat)
        inside = np.ones(flat.shape, dtype=np.bool_)
        # numpy cannot unravel for a scalar, whose only region with axes is the whole.
        places = np.unravel_index(flat, self.shape) if self.shape else ()
        for axis, coordinates in zip(axes, places, strict=True):
            inside &= axis_has(axis, coordinates.astype(np.int64))
        return inside

    def take(self, array: AnyArray) -> AnyArray:
        """The region's values in `storage_shape`, as a new array.

        Raises:
            ValueError: the array has another shape than the variable.
        """
        self._check(array)
        return np.array(array[self._subscript()])

    def put(self, array: AnyArray, values: AnyArray) -> AnyArray:
        """A new array that holds ``values`` in the region and ``array`` elsewhere: the inverse of `take`.

        Raises:
            ValueError: an argument has another shape than it must have.
        """
        self._check(array)
        if values.shape != self.storage_shape:
            raise ValueError(f"values of shape {values.shape} for a region stored as {self.storage_shape}")
        result = np.array(array)
        result[self._subscript()] = values
        return result

    def to_mask(self) -> BoolArray:
        """One flag per element of the variable."""
        mask = np.zeros(self.shape, dtype=np.bool_)
        mask[self._subscript()] = True
        return mask

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Region):
            return NotImplemented
        return type(self) is type(other) and self.shape == other.shape and self._same(other)

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.shape, self.count))

    def _check(self, array: AnyArray) -> None:
        if array.shape != self.shape:
            raise ValueError(f"array of shape {array.shape} for a region of shape {self.shape}")

    @abstractmethod
    def _storage_shape(self) -> Shape: ...

    @abstractmethod
    def _subscript(self) -> Any:
        """What selects the region in a numpy array of the variable's shape."""

    def _axes(self) -> tuple[AxisSet, ...] | None:
        return None

    def _contains(self, flat: Indices) -> BoolArray:
        """`contains` for a region without axes; by default one without elements."""
        return np.zeros(flat.shape, dtype=np.bool_)

    def _same(self, other: Region) -> bool:
        """Equality within one kind and shape."""
        return True


@dataclass(frozen=True, slots=True, eq=False)
class Empty(Region):
    """No element."""

    def _storage_shape(self) -> Shape:
        return (0,)

    def _subscript(self) -> BoolArray:
        return np.zeros(self.shape, dtype=np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class Whole(Region):
    """Every element."""

    def _storage_shape(self) -> Shape:
        return self.shape

    def _axes(self) -> tuple[AxisSet, ...] | None:
        return tuple(Span(0, size) for size in self.shape) if self.size else None

    def _subscript(self) -> EllipsisType:
        return ...


@dataclass(frozen=True, slots=True, eq=False)
class Box(Region):
    """A product of spans, one per axis: what a subscript of slices names."""

    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        if not self.shape or len(self.spans) != len(self.shape):
            raise ValueError(f"{len(self.spans)} spans for shape {self.shape}")
        if any(span.stop > size for span, size in zip(self.spans, self.shape, strict=True)):
            raise ValueError(f"box {self.spans} leaves shape {self.shape}")

    @property
    def slices(self) -> tuple[slice, ...]:
        """The box as a numpy subscript."""
        return tuple(span.as_slice for span in self.spans)

    def _storage_shape(self) -> Shape:
        return tuple(len(span) for span in self.spans)

    def _axes(self) -> tuple[AxisSet, ...] | None:
        return self.spans

    def _subscript(self) -> tuple[slice, ...]:
        return self.slices

    def _same(self, other: Region) -> bool:
        return isinstance(other, Box) and self.spans == other.spans


@dataclass(frozen=True, slots=True, eq=False)
class Rows(Region):
    """Listed indices on one axis, everything on the others."""

    axis: int
    indices: Indices
    """Sorted, unique, not empty."""

    def __post_init__(self) -> None:
        if not 0 <= self.axis < len(self.shape):
            raise ValueError(f"no axis {self.axis} in shape {self.shape}")
        object.__setattr__(self, "indices", _listed(self.indices, self.shape[self.axis]))

    def _storage_shape(self) -> Shape:
        return (*self.shape[: self.axis], len(self.indices), *self.shape[self.axis + 1 :])

    def _axes(self) -> tuple[AxisSet, ...] | None:
        if not self.size:
            return None
        full: list[AxisSet] = [Span(0, size) for size in self.shape]
        full[self.axis] = self.indices
        return tuple(full)

    def _subscript(self) -> tuple[slice | Indices, ...]:
        return (*[slice(None)] * self.axis, self.indices)

    def _same(self, other: Region) -> bool:
        return isinstance(other, Rows) and self.axis == other.axis and np.array_equal(self.indices, other.indices)


@dataclass(frozen=True, slots=True, eq=False)
class Points(Region):
    """Few elements without a pattern, by flat position in C order."""

    indices: Indices
    """Sorted, unique, not empty."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "indices", _listed(self.indices, self.size))

    def _storage_shape(self) -> Shape:
        return (len(self.indices),)

    def _subscript(self) -> tuple[Indices, ...]:
        return tuple(axis.astype(np.int64) for axis in np.unravel_index(self.indices, self.shape))

    def _contains(self, flat: Indices) -> BoolArray:
        return contains_sorted(self.indices, flat)

    def _same(self, other: Region) -> bool:
        return isinstance(other, Points) and np.array_equal(self.indices, other.indices)


@dataclass(frozen=True, slots=True, eq=False)
class Dense(Region):
    """Many elements without a pattern: a mask."""

    mask: BoolArray

    def __post_init__(self) -> None:
        mask = np.array(self.mask, order="C")
        if mask.dtype != np.bool_ or mask.shape != self.shape:
            raise ValueError(f"mask of {mask.dtype} {mask.shape} for shape {self.shape}")
        mask.setflags(write=False)
        object.__setattr__(self, "mask", mask)

    def _storage_shape(self) -> Shape:
        return (int(np.count_nonzero(self.mask)),)

    def _subscript(self) -> BoolArray:
        return self.mask

    def _contains(self, flat: Indices) -> BoolArray:
        return np.asarray(self.mask.reshape(-1)[flat])

    def _same(self, other: Region) -> bool:
        return isinstance(other, Dense) and np.array_equal(self.mask, other.mask)


def _listed(indices: Indices, size: int) -> Indices:
    """A read-only copy of sorted unique indices below ``size``."""
    listed = np.array(indices, dtype=np.int64)
    if listed.ndim != 1 or len(listed) == 0 or listed[0] < 0 or listed[-1] >= size or not (np.diff(listed) > 0).all():
        raise ValueError(f"indices must be a sorted, unique, not empty list below {size}")
    listed.setflags(write=False)
    return listed
