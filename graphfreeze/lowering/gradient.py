"""Masks a gradient: zeros at frozen elements, the same bits elsewhere.

Zeros are selected, not multiplied in: an inf or NaN at a frozen element must not reach a norm. Of a sparse gradient the
values are masked and the ids stay, so it has as many rows as before.
"""

from __future__ import annotations

import math

import numpy as np

from graphfreeze.graph.attrs import type_attr
from graphfreeze.graph.uses import Source
from graphfreeze.lowering.bits import PackedRows
from graphfreeze.lowering.box import box_cuts
from graphfreeze.lowering.emitter import BOOL, INT32
from graphfreeze.lowering.full import region_flags
from graphfreeze.lowering.merge import MergeContext, Overlay
from graphfreeze.savedmodel.dtypes import NUMPY_DTYPES
from graphfreeze.selection import Box, Dense, Rows


def mask_gradient(context: MergeContext, overlay: Overlay, source: Source) -> str:
    """The masked tensor that stands for a source; ``overlay`` says what is frozen."""
    emit, shape = context.emit, context.merge.plan.shape
    zero = emit.const(np.zeros((), NUMPY_DTYPES[source.dtype]))
    if not overlay.region.is_whole:
        flags = region_flags(context, overlay) if source.ids is None else _flags_at(context, overlay, *source.ids)
        return emit.select(flags, zero, source.tensor, source.dtype)
    if source.ids is None and shape is not None and min(shape, default=0) >= 0:
        # Nothing asks for the gradient any more, so it is not computed.
        attrs = {"T": type_attr(source.dtype), "index_type": type_attr(INT32)}
        return emit.op("Fill", [emit.ints(list(shape)), zero], attrs)
    return emit.op("ZerosLike", [source.tensor], {"T": type_attr(source.dtype)})


def _flags_at(context: MergeContext, overlay: Overlay, ids: str, id_dtype: int) -> str:
    """Where the region lies in the rows with these ids, as flags that broadcast to (number of ids, *row)."""
    emit, shape, region = context.emit, context.merge.shape, overlay.region
    match region:
        case Dense():
            bits, dtype = context.geometry(f"{overlay.prefix}/bits")
            packed = PackedRows(emit, emit.gather(bits, ids, dtype, id_dtype), math.prod(shape[1:]))
            return emit.reshape(packed.flags(), BOOL, [-1, *shape[1:]])
        case Box() if all(axis > 0 for axis, _, _ in box_cuts(region.spans, shape)):
            return region_flags(context, overlay)
        case Rows(axis=axis) if axis > 0:
            return region_flags(context, overlay)
        case _:
            return emit.gather(region_flags(context, overlay), ids, BOOL, id_dtype)
