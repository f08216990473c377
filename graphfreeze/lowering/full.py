"""Merges a full read: the whole tensor, with each overlay written over its region.

The ops are chosen so that forward values are copied bit for bit and gradients are slices or selections of the incoming
gradient: nothing is multiplied or added, so NaN, inf and -0.0 in one region never reach another.
"""

from __future__ import annotations

import math

import numpy as np

from graphfreeze.lowering.emitter import BOOL, INT64, UINT8, Emitter
from graphfreeze.lowering.merge import MergeContext, Overlay
from graphfreeze.selection import Box, Dense, Points, Rows
from graphfreeze.selection.axis import axis_is_full


def merge_full(context: MergeContext, base: str) -> str:
    """The effective value, given the raw value ``base`` of the variable (shape and dtype of the variable)."""
    merge, emit = context.merge, context.emit
    whole = merge.replaces_base()
    if whole is not None:
        return _values(context, whole, base)
    merged = base if merge.base_trains else emit.stop_gradient(base, merge.dtype)
    for overlay in merge.overlays:
        merged = _put(context, overlay, merged, _values(context, overlay, base))
    return merged


def _values(context: MergeContext, overlay: Overlay, base: str) -> str:
    emit, dtype = context.emit, context.merge.dtype
    if overlay.role is None:
        return emit.stop_gradient(_take(context, overlay, base), dtype)
    values = emit.read(context.handles[overlay.role], dtype, overlay.region.storage_shape, f"{overlay.prefix}/read")
    return values if overlay.trainable else emit.stop_gradient(values, dtype)


def _put(context: MergeContext, overlay: Overlay, x: str, values: str) -> str:
    emit, dtype, shape = context.emit, context.merge.dtype, context.merge.shape
    region = overlay.region
    match region:
        case Box():
            if not context.merge.base_trains and (axis := _slab_axis(region)) is not None:
                return _concat(context, region, axis, x, values)
            return emit.strided_update(x, values, dtype, region.slices)
        case Rows():
            return put_rows(context, overlay, x, values, dtype)
        case Points() | Dense():
            indices, index_dtype = _indices(context, overlay)
            flat = emit.reshape(x, dtype, [-1])
            return emit.reshape(emit.scatter_update(flat, indices, values, dtype, index_dtype), dtype, shape)
        case _:
            raise AssertionError(f"no merge for {region!r}")


def put_rows(context: MergeContext, overlay: Overlay, x: str, values: str, dtype: int) -> str:
    """``x`` with the listed slices of one axis replaced; in a lookup, its dtype and first dimension are the rows'."""
    emit, region = context.emit, overlay.region
    assert isinstance(region, Rows)
    indices, index_dtype = _indices(context, overlay)
    if region.axis == 0:
        return emit.scatter_update(x, indices, values, dtype, index_dtype)
    # TensorScatterUpdate works on the first axis only: an exact swap of two axes on the way in and out. The select at
    # the end keeps Grappler from folding the swap into a MatMul, which would add up in another order (test_merge).
    swap = list(range(len(region.shape)))
    swap[0], swap[region.axis] = region.axis, 0
    front, part = emit.transpose(emit.stop_gradient(x, dtype), dtype, swap), emit.transpose(values, dtype, swap)
    spread = emit.transpose(emit.scatter_update(front, indices, part, dtype, index_dtype), dtype, swap)
    flags, _ = context.geometry(f"{overlay.prefix}/flags")
    return emit.select(flags, spread, x, dtype)


def _slab_axis(region: Box) -> int | None:
    """The only axis that a contiguous box restricts: ConcatV2 is the cheapest merge there, and its gradient a slice."""
    cut = [i for i, (s, d) in enumerate(zip(region.spans, region.shape, strict=True)) if not axis_is_full(s, d)]
    return cut[0] if len(cut) == 1 and region.spans[cut[0]].step == 1 else None


def _concat(context: MergeContext, region: Box, axis: int, x: str, values: str) -> str:
    emit, dtype = context.emit, context.merge.dtype
    span, size = region.spans[axis], region.shape[axis]
    full = [slice(0, d) for d in region.shape]

    def piece(start: int, stop: int) -> list[str]:
        if start == stop:
            return []
        return [emit.strided_slice(x, dtype, [*full[:axis], slice(start, stop), *full[axis + 1 :]])]

    return emit.concat([*piece(0, span.start), values, *piece(span.stop, size)], dtype, axis)


def _take(context: MergeContext, overlay: Overlay, x: str) -> str:
    emit, dtype, region = context.emit, context.merge.dtype, overlay.region
    match region:
        case Box():
            return emit.strided_slice(x, dtype, region.slices)
        case Rows():
            key = f"{overlay.prefix}/indices"
            return emit.gather(x, *_with_dtype(context, key, dtype), axis=region.axis)
        case _:
            indices, index_dtype = _indices(context, overlay)
            return emit.gather_nd(emit.reshape(x, dtype, [-1]), indices, dtype, index_dtype)


def _with_dtype(context: MergeContext, key: str, dtype: int) -> tuple[str, int, int]:
    ref, index_dtype = context.geometry(key)
    return ref, dtype, index_dtype


def _indices(context: MergeContext, overlay: Overlay) -> tuple[str, int]:
    """Indices of shape (count, 1) on the first axis, or into the flattened variable."""
    emit = context.emit
    if isinstance(overlay.region, Dense):
        bits, _ = context.geometry(f"{overlay.prefix}/bits")
        row = math.prod(overlay.region.shape[1:])
        return emit.where(emit.reshape(unpack_bits(emit, bits, row), BOOL, [-1])), INT64
    ref, dtype = context.geometry(f"{overlay.prefix}/indices")
    return emit.reshape(ref, dtype, [-1, 1]), dtype


def unpack_bits(emit: Emitter, bits: str, row: int) -> str:
    """Packed rows (k, ceil(row / 8)) of uint8 -> flags (k, row)."""
    powers = emit.const(np.asarray([1 << i for i in range(8)], np.uint8), "powers")
    column = emit.expand_dims(bits, UINT8, -1)
    set_bits = emit.binary("BitwiseAnd", column, powers, UINT8)
    flags = emit.binary("NotEqual", set_bits, emit.const(np.asarray(0, np.uint8)), UINT8)
    padded = -(-row // 8) * 8
    rows = emit.reshape(flags, BOOL, [-1, padded])
    return rows if padded == row else emit.strided_slice(rows, BOOL, [slice(0, None), slice(0, row)])
