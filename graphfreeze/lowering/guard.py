"""Puts frozen elements back after an op that writes a variable, bit for bit.

Masking what is written is not enough: momentum, averages and decay move an element whose gradient is zero, and adding
zero turns -0.0 into 0.0 and flushes denormal numbers. So the elements are read before the op and written back after it.
The cost follows the region where it is a box or rows, or few points; else the whole variable is selected from.

| held             | read before          | written back               |
|------------------|----------------------|----------------------------|
| everything       | ReadVariableOp       | AssignVariableOp           |
| rows             | ResourceGather       | ResourceScatterUpdate      |
| a box            | gather or slice      | ResourceStridedSliceAssign |
| few points       | ResourceGatherNd     | ResourceScatterNdUpdate    |
| most, or many    | ReadVariableOp       | SelectV2, AssignVariableOp |

A ref variable (TF1) takes the counterparts of these, and is read by ops that copy: an Identity, and a slice of rows,
share its memory, and what is put back would be what was just written.

Measured with Adam on 4096 x 1024, in ms (no guard 8-12): 10 % of the rows 11-17, a full select 18-32.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from graphfreeze.graph.attrs import type_attr
from graphfreeze.lowering.box import box_cuts
from graphfreeze.lowering.emitter import BOOL, INT32, INT64, Emitter
from graphfreeze.lowering.full import region_flags
from graphfreeze.lowering.merge import MergeContext, Overlay
from graphfreeze.planning.guards import Guard
from graphfreeze.selection import Box, Points


class WriteGuard:
    """The guard of one write: ``before`` is emitted first, ``after`` last."""

    def __init__(self, context: MergeContext, overlay: Overlay, handle: str, guard: Guard) -> None:
        self.context, self._overlay, self._handle = context, overlay, handle
        self._emit: Emitter = context.emit
        self._region: Any = overlay.region
        self._dtype = context.merge.dtype
        self._guard = guard

    def before(self) -> str:
        """Reads what is to be put back; returns the edge of that."""
        emit, dtype, handle = self._emit, self._dtype, self._handle
        match self._guard:
            case Guard.ROWS:
                rows, index_dtype = self._rows
                return emit.resource_gather(handle, rows, dtype, index_dtype)
            case Guard.POINTS:
                points, index_dtype = self._points
                return emit.resource_gather_nd(handle, points, dtype, index_dtype)
            case Guard.BOX:
                return self._box()
            case _:
                return emit.copy(handle, dtype, self.context.merge.plan.shape)

    def after(self, control: str, old: str) -> str:
        """Writes ``old`` back after ``control`` has run; returns the edge of the op that does so."""
        emit, dtype, handle = self._emit, self._dtype, self._handle
        match self._guard:
            case Guard.ROWS:
                rows, index_dtype = self._rows
                return emit.write("ResourceScatterUpdate", handle, [rows, old, control], dtype, index_dtype)
            case Guard.POINTS:
                points, index_dtype = self._points
                return emit.write("ResourceScatterNdUpdate", handle, [points, old, control], dtype, index_dtype)
            case Guard.BOX:
                bounds, attrs = emit.slice_bounds(_slices(self._region), dtype)
                return emit.write("ResourceStridedSliceAssign", handle, [*bounds, old, control], attrs=attrs)
            case Guard.SELECT:
                new = emit.read_after(handle, dtype, control)
                flags = region_flags(self.context, self._overlay)
                return emit.write("AssignVariableOp", handle, [emit.select(flags, old, new, dtype)], dtype)
            case _:
                return emit.write("AssignVariableOp", handle, [old, control], dtype)

    def _box(self) -> str:
        emit, dtype, shape = self._emit, self._dtype, self.context.merge.shape
        cuts = box_cuts(self._region.spans, shape)
        if [axis for axis, _, _ in cuts] == [0]:
            # A slice of rows would share the variable's memory, and the op would have to copy all of it first.
            span = cuts[0][1]
            rows = emit.arithmetic(span.start, span.stop, span.step)
            return emit.resource_gather(self._handle, rows, dtype, INT32)
        return emit.strided_slice(emit.read(self._handle, dtype, shape), dtype, _slices(self._region))

    @cached_property
    def _rows(self) -> tuple[str, int]:
        return self.context.geometry(f"{self._overlay.prefix}/indices")

    @cached_property
    def _points(self) -> tuple[str, int]:
        """The elements as coordinates (count, rank)."""
        emit, shape = self._emit, self.context.merge.shape
        if not isinstance(self._region, Points):
            flags = region_flags(self.context, self._overlay)
            return emit.where(emit.broadcast(flags, shape, BOOL)), INT64
        # The geometry holds places in the flattened variable.
        places, dtype = self.context.geometry(f"{self._overlay.prefix}/indices")
        if len(shape) == 1:
            return emit.reshape(places, dtype, [-1, 1]), dtype
        by_axis = emit.op("UnravelIndex", [places, emit.ints(list(shape), dtype)], {"Tidx": type_attr(dtype)})
        return emit.transpose(by_axis, dtype, [1, 0]), dtype


def _slices(region: Box) -> list[slice]:
    return [slice(span.start, span.stop, span.step) for span in region.spans]
