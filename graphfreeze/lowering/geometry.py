"""Where a region lies, as small arrays that the graph can compute with.

A box needs none (its bounds are part of the ops). Rows need their indices for a full read and, on axis 0, a row map
(row -> its place in the storage, -1 elsewhere) for a lookup. Scattered elements are held as flat indices or, where they
are many, as a bit mask, packed eight to a byte and padded per row so that a lookup can gather the rows of the mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from graphfreeze.selection import Box, Dense, Points, Region, Rows
from graphfreeze.selection.axis import AxisSet, Span, axis_from_mask, axis_is_full, axis_mask

Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class RowSet:
    """The rows (axis 0) that a region touches, and what of each row it holds."""

    rows: AxisSet
    spans: tuple[Span, ...] | None
    """The same box of every such row; None where it differs from row to row."""


def row_set(region: Region) -> RowSet:
    """A region as seen by a lookup on axis 0. The region must have at least one axis and one element."""
    match region:
        case Box():
            return RowSet(region.spans[0], region.spans[1:])
        case Rows(axis=0):
            return RowSet(region.indices, tuple(Span(0, d) for d in region.shape[1:]))
        case _:
            touched = axis_from_mask(np.asarray(_row_bits(region).any(axis=1)))
            assert touched is not None
            return RowSet(touched, None)


def full_rows(region: Region, found: RowSet) -> bool:
    """Whether the region holds its rows entirely."""
    return found.spans is not None and all(
        axis_is_full(span, size) for span, size in zip(found.spans, region.shape[1:], strict=True)
    )


def live_rows(trainable: Region) -> AxisSet | None:
    """Rows with a trainable element; None where that is all of them."""
    if not trainable.shape or trainable.is_empty or trainable.is_whole:
        return None
    rows = row_set(trainable).rows
    return None if axis_is_full(rows, trainable.shape[0]) else rows


def full_geometry(region: Region, prefix: str) -> Arrays:
    """What a full read needs."""
    match region:
        case Rows():
            listed = {f"{prefix}/indices": _narrow(region.indices, max(region.shape))}
            if region.axis > 0:
                flags = axis_mask(region.indices, region.shape[region.axis])
                listed[f"{prefix}/flags"] = flags.reshape(-1, *[1] * (len(region.shape) - region.axis - 1))
            return listed
        case Points():
            return {f"{prefix}/indices": _narrow(region.indices, region.size)}
        case Dense():
            return {f"{prefix}/bits": np.packbits(_row_bits(region), axis=1, bitorder="little")}
        case _:
            return {}


def gather_geometry(region: Region, prefix: str, *, with_values: bool) -> Arrays:
    """What a lookup on axis 0 needs."""
    if isinstance(region, Rows) and region.axis > 0:
        return full_geometry(region, prefix)
    found = row_set(region)
    arrays: Arrays = {}
    if isinstance(found.rows, np.ndarray):
        table = np.full(region.shape[0], -1, np.int32)
        table[found.rows] = np.arange(len(found.rows), dtype=np.int32)
        arrays[f"{prefix}/map"] = table
    if found.spans is None:
        bits = _row_bits(region)[_as_index(found.rows)]
        # The name differs from the full read's where only some rows are held.
        whole = isinstance(region, Dense) and axis_is_full(found.rows, region.shape[0])
        arrays[f"{prefix}/bits" if whole else f"{prefix}/row_bits"] = np.packbits(bits, axis=1, bitorder="little")
        if with_values:
            counts = bits.sum(axis=1, dtype=np.int64)
            arrays[f"{prefix}/starts"] = _narrow(np.concatenate([[0], np.cumsum(counts)[:-1]]), 0)
    return arrays


def _as_index(rows: AxisSet) -> slice | NDArray[np.int64]:
    return rows.as_slice if isinstance(rows, Span) else rows


def _row_bits(region: Region) -> NDArray[np.bool_]:
    return np.asarray(region.to_mask().reshape(region.shape[0], prod(region.shape[1:])))


def _narrow(values: NDArray[np.int64], largest: int) -> NDArray[np.generic]:
    top = max(largest, int(values.max(initial=0)))
    return values.astype(np.int32 if top < 2**31 else np.int64)
