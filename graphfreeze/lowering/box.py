"""Writes a box over a tensor.

TensorStridedSliceUpdate would do it in one op, but it and its gradient move single elements and take ten times as long
as a copy. ConcatV2 of slices costs one copy, and its gradient is a slice. It serves a box that cuts one axis; where
more than one piece of a tensor that trains is left, the gradients of the pieces would have to be added, which turns
-0.0 into 0.0, and a selection is used instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphfreeze.lowering.emitter import BOOL, INT32, Emitter
from graphfreeze.selection.axis import Span, axis_is_full

Cut = tuple[int, Span, int]
"""An axis that a box cuts, its span there, and the size of the axis."""


def box_cuts(spans: Sequence[Span], shape: Sequence[int], first: int = 0) -> list[Cut]:
    """The axes that a box does not hold entirely; ``first`` is the number of the first axis."""
    pairs = zip(spans, shape, strict=True)
    return [(first + i, span, size) for i, (span, size) in enumerate(pairs) if not axis_is_full(span, size)]


def put_box(
    emit: Emitter, x: str, values: str, dtype: int, cuts: Sequence[Cut], shape: Sequence[int], *, x_trains: bool
) -> str:
    """``x`` with ``values`` in the box. ``shape`` is that of ``x``; its first size may be -1, on an axis not cut."""
    _, span, size = cuts[0]
    pieces = (span.start > 0) + (span.stop < size)
    if len(cuts) == 1 and span.step == 1 and not (x_trains and pieces > 1):
        return _concat(emit, x, values, dtype, cuts[0], shape)
    full = _spread(emit, values, dtype, cuts, shape)
    return emit.select(box_flags(emit, cuts, len(shape)), full, x, dtype)


def _concat(emit: Emitter, x: str, values: str, dtype: int, cut: Cut, shape: Sequence[int]) -> str:
    axis, span, size = cut

    def piece(start: int, stop: int) -> list[str]:
        if start == stop:
            return []
        begin, extent = [0] * len(shape), list(shape)
        begin[axis], extent[axis] = start, stop - start
        return [emit.contiguous_slice(x, dtype, begin, extent)]

    return emit.concat([*piece(0, span.start), values, *piece(span.stop, size)], dtype, axis)


def _spread(emit: Emitter, values: str, dtype: int, cuts: Sequence[Cut], shape: Sequence[int]) -> str:
    """The values at their places in a tensor like ``shape``, zeros elsewhere."""
    extent = list(shape)
    for axis, span, _ in cuts:
        extent[axis] = len(span)
    outer = np.zeros((len(shape), 2), np.int32)
    for axis, span, size in cuts:
        room = size - span.start
        if span.step > 1:
            gaps = np.zeros((len(shape) + 1, 2), np.int32)
            gaps[axis + 1, 1] = span.step - 1
            spaced = emit.pad(emit.expand_dims(values, dtype, axis + 1), dtype, gaps)
            extent[axis] *= span.step
            values = emit.reshape(spaced, dtype, extent)
            if extent[axis] > room:
                extent[axis] = room
                values = emit.contiguous_slice(values, dtype, [0] * len(shape), extent)
        outer[axis] = span.start, room - extent[axis]
    return emit.pad(values, dtype, outer) if outer.any() else values


def box_flags(emit: Emitter, cuts: Sequence[Cut], rank: int) -> str:
    """Where the box is, broadcastable to the tensor."""
    flags = ""
    for axis, span, size in cuts:
        places = emit.range(size)
        inside = in_span(emit, places, span, size, INT32)
        on_axis = emit.reshape(inside, BOOL, [size if i == axis else 1 for i in range(rank)])
        flags = emit.binary("LogicalAnd", flags, on_axis, None) if flags else on_axis
    return flags


def in_span(emit: Emitter, x: str, span: Span, size: int, dtype: int) -> str:
    """For each integer of an axis of this size whether it lies in the span, which leaves some of the axis out."""
    tests = []
    if span.start > 0:
        tests.append(emit.binary("GreaterEqual", x, emit.ints(span.start, dtype), dtype))
    if span.stop < size:
        tests.append(emit.binary("Less", x, emit.ints(span.stop, dtype), dtype))
    if span.step > 1:
        places = emit.binary("Sub", x, emit.ints(span.start, dtype), dtype) if span.start > 0 else x
        rest = emit.binary("FloorMod", places, emit.ints(span.step, dtype), dtype)
        tests.append(emit.binary("Equal", rest, emit.ints(0, dtype), dtype))
    inside = tests[0]
    for test in tests[1:]:
        inside = emit.binary("LogicalAnd", inside, test, None)
    return inside
