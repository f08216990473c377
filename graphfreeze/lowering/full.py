"""Merges a full read: the whole tensor, with each overlay written over its region.

The ops are chosen so that forward values are copied bit for bit and gradients are slices or selections of the incoming
gradient: nothing is multiplied or added, so NaN, inf and -0.0 in one region never reach another.
"""

from __future__ import annotations

import math

import numpy as np

from graphfreeze.lowering.bits import PackedRows
from graphfreeze.lowering.box import box_cuts, box_flags, put_box
from graphfreeze.lowering.emitter import BOOL, INT64, Emitter
from graphfreeze.lowering.merge import MergeContext, Overlay
from graphfreeze.planning.guards import SCATTER_SHARE
from graphfreeze.selection import Box, Dense, Points, Region, Rows, Whole


def merge_full(context: MergeContext, base: str) -> str:
    """The effective value, given the raw value ``base`` of the variable (shape and dtype of the variable)."""
    merge, emit = context.merge, context.emit
    whole = merge.replaces_base()
    if whole is not None:
        return _values(context, whole, base)
    merged = base if merge.base_trains else emit.stop_gradient(base, merge.dtype)
    trains = merge.base_trains
    for overlay in merge.overlays:
        merged = _put(context, overlay, merged, base, trains)
        trains = trains or overlay.trainable
    return merged


def _values(context: MergeContext, overlay: Overlay, base: str) -> str:
    emit, dtype = context.emit, context.merge.dtype
    if overlay.role is None:
        return emit.stop_gradient(_take(context, overlay, base), dtype)
    values = _read(context, overlay)
    return values if overlay.trainable else emit.stop_gradient(values, dtype)


def _read(context: MergeContext, overlay: Overlay) -> str:
    assert overlay.role is not None
    handle, shape = context.handles[overlay.role], overlay.region.storage_shape
    return context.emit.read(handle, context.merge.dtype, shape, f"{overlay.prefix}/read")


def _put(context: MergeContext, overlay: Overlay, x: str, base: str, x_trains: bool) -> str:
    emit, dtype, shape = context.emit, context.merge.dtype, context.merge.shape
    region = overlay.region
    match region:
        case Box():
            values = _values(context, overlay, base)
            return put_box(emit, x, values, dtype, box_cuts(region.spans, shape), shape, x_trains=x_trains)
        case Rows():
            return put_rows(context, overlay, x, _values(context, overlay, base), dtype)
        case Points() | Dense() if overlay.trainable or region.count * SCATTER_SHARE <= region.size:
            values = _values(context, overlay, base)
            indices, index_dtype = _indices(context, overlay)
            flat = emit.reshape(x, dtype, [-1])
            return emit.reshape(emit.scatter_update(flat, indices, values, dtype, index_dtype), dtype, shape)
        case Points() | Dense():
            return _select_scattered(context, overlay, x, base)
        case _:
            raise AssertionError(f"no merge for {region!r}")


def take_region(emit: Emitter, x: str, region: Region, dtype: int) -> str:
    """The elements of a region of ``x``, in the shape of its storage; the geometry is in constants beside it."""
    match region:
        case Whole():
            return x
        case Box():
            return emit.strided_slice(x, dtype, region.slices)
        case Rows():
            return emit.gather(x, emit.const(region.indices), dtype, INT64, axis=region.axis)
        case Points():
            flat = emit.reshape(x, dtype, [-1])
            return emit.gather(flat, emit.const(region.indices), dtype, INT64)
        case _:
            bits = emit.const(np.packbits(region.to_mask().reshape(1, -1), axis=1, bitorder="little"))
            flags = emit.reshape(PackedRows(emit, bits, region.size).flags(), BOOL, [-1])
            return emit.gather_nd(emit.reshape(x, dtype, [-1]), emit.where(flags), dtype, INT64)


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


def _select_scattered(context: MergeContext, overlay: Overlay, x: str, base: str) -> str:
    """A selection costs the same however many elements are held, forward and back."""
    emit, dtype, shape = context.emit, context.merge.dtype, context.merge.shape
    flags = region_flags(context, overlay)
    if overlay.role is None:
        values = emit.stop_gradient(base, dtype)
    else:
        if isinstance(overlay.region, Dense):
            indices, index_dtype = emit.where(emit.reshape(flags, BOOL, [-1])), INT64
        else:
            indices, index_dtype = context.geometry(f"{overlay.prefix}/indices")
        held = _read(context, overlay)
        spread = emit.sparse_to_dense(indices, held, overlay.region.size, dtype, index_dtype)
        # The gradient of SparseToDense asks for indices of rank 2, and costs: it ends before it.
        values = emit.stop_gradient(emit.reshape(spread, dtype, shape), dtype)
    return emit.select(flags, values, x, dtype)


def region_flags(context: MergeContext, overlay: Overlay) -> str:
    """Where the region lies, as flags that broadcast to the variable."""
    emit, shape, region = context.emit, context.merge.shape, overlay.region
    match region:
        case Box():
            return box_flags(emit, box_cuts(region.spans, shape), len(shape))
        case Rows(axis=0):
            rows = _marked(context, overlay, shape[0])
            return emit.reshape(rows, BOOL, [shape[0], *[1] * (len(shape) - 1)])
        case Rows():
            return context.geometry(f"{overlay.prefix}/flags")[0]
        case Points():
            return emit.reshape(_marked(context, overlay, region.size), BOOL, shape)
        case Dense():
            return emit.reshape(_dense_flags(context, overlay), BOOL, shape)
        case _:
            raise AssertionError(f"no flags for {region!r}")


def _marked(context: MergeContext, overlay: Overlay, size: int) -> str:
    """A vector of flags, set at the indices of the region."""
    emit = context.emit
    indices, index_dtype = context.geometry(f"{overlay.prefix}/indices")
    return emit.sparse_to_dense(indices, emit.const(np.asarray(True)), size, BOOL, index_dtype)


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
        return emit.where(emit.reshape(_dense_flags(context, overlay), BOOL, [-1])), INT64
    ref, dtype = context.geometry(f"{overlay.prefix}/indices")
    return emit.reshape(ref, dtype, [-1, 1]), dtype


def _dense_flags(context: MergeContext, overlay: Overlay) -> str:
    bits, _ = context.geometry(f"{overlay.prefix}/bits")
    return PackedRows(context.emit, bits, math.prod(overlay.region.shape[1:])).flags()
