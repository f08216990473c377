"""Merges a lookup (a gather on the first axis) on the gathered rows.

Merging the table first would turn the sparse gradient dense and the lookup into a copy of the table. Here every storage
is gathered only with the ids that it holds: positions are *selected* (Where), never clamped to a dummy row, because a
dummy row would be in the sparse gradient and an optimizer with momentum would move it. Rows of a frozen id are thus in
no gradient at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphfreeze.graph.access import Lookup
from graphfreeze.graph.scope import Scope
from graphfreeze.lowering.bits import PackedRows
from graphfreeze.lowering.box import box_cuts, in_span, put_box
from graphfreeze.lowering.emitter import INT32, INT64, NUMPY_INTS
from graphfreeze.lowering.full import put_rows
from graphfreeze.lowering.geometry import RowSet, full_rows, row_set
from graphfreeze.lowering.merge import MergeContext, Overlay
from graphfreeze.savedmodel.protos import NodeDef
from graphfreeze.selection import Rows
from graphfreeze.selection.axis import AxisSet, Span, axis_is_full


@dataclass(frozen=True, slots=True)
class _Selected:
    """The looked-up rows that a storage holds: their positions (k, 1), ids (k,) and places in the storage (k,).

    ``positions`` is None where the storage holds every row.
    """

    positions: str | None
    ids: str
    local: str


class _Rows:
    """One lookup being merged. Rows are kept as (number of ids, *row shape)."""

    def __init__(self, context: MergeContext, scope: Scope, lookup: Lookup) -> None:
        self.context = context
        self.emit = context.emit
        node = scope.nodes[lookup.node]
        self.node = node
        self.casts: Sequence[NodeDef] = [scope.nodes[name] for name in lookup.casts]
        self.dtype = self.casts[-1].attr["DstT"].type if self.casts else context.merge.dtype
        self.id_dtype: int = node.attr["Tindices"].type
        self.raw = scope.ref(node.name, node.op)
        self.row = context.merge.shape[1:]
        self.ids = self.emit.reshape(node.input[1], self.id_dtype, [-1])

    def cast(self, rows: str) -> str:
        """Applies the casts that stand between the variable and the lookup."""
        for node in self.casts:
            attrs = node.attr
            rows = self.emit.cast(rows, attrs["SrcT"].type, attrs["DstT"].type, attrs["Truncate"].b)
        return rows

    def flat(self, rows: str, dtype: int | None = None) -> str:
        """(ids' shape, *row) -> (number of ids, *row)."""
        return self.emit.reshape(rows, self.dtype if dtype is None else dtype, [-1, *self.row])

    def id_const(self, value: int) -> str:
        """A constant of the ids' dtype."""
        return self.emit.const(np.asarray(value, NUMPY_INTS[self.id_dtype]))

    def select(self, rows: AxisSet, key: str) -> _Selected:
        """The looked-up ids that lie in a set of rows."""
        emit, dtype = self.emit, self.id_dtype
        if axis_is_full(rows, self.context.merge.shape[0]):
            return _Selected(None, self.ids, self.ids)
        if isinstance(rows, Span):
            flags = in_span(emit, self.ids, rows, self.context.merge.shape[0], dtype)
            positions = emit.where(flags)
            ids = emit.gather_nd(self.ids, positions, dtype, INT64)
            local = emit.binary("Sub", ids, self.id_const(rows.start), dtype)
            if rows.step != 1:
                local = emit.binary("FloorDiv", local, self.id_const(rows.step), dtype)
            return _Selected(positions, ids, local)
        table, table_dtype = self.context.geometry(f"{key}/map")
        place = emit.gather(table, self.ids, table_dtype, dtype)
        flags = emit.binary("GreaterEqual", place, emit.const(np.asarray(0, NUMPY_INTS[table_dtype])), table_dtype)
        positions = emit.where(flags)
        ids = emit.gather_nd(self.ids, positions, dtype, INT64)
        return _Selected(
            positions, ids, self._to_ids(emit.gather_nd(place, positions, table_dtype, INT64), table_dtype)
        )

    def _to_ids(self, x: str, dtype: int) -> str:
        return x if dtype == self.id_dtype else self.emit.cast(x, dtype, self.id_dtype)

    def at(self, rows: str, selected: _Selected) -> str:
        """The selected ones of the rows."""
        if selected.positions is None:
            return rows
        return self.emit.gather_nd(rows, selected.positions, self.dtype, INT64)

    def put(self, rows: str, selected: _Selected, values: str) -> str:
        """The rows with the selected ones replaced."""
        if selected.positions is None:
            return values
        return self.emit.scatter_update(rows, selected.positions, values, self.dtype, INT64)


def merge_lookup(context: MergeContext, scope: Scope, lookup: Lookup) -> str:
    """The effective rows of one lookup, in the shape and dtype that the lookup gave."""
    merge, emit = context.merge, context.emit
    if not merge.overlays:
        dtype = scope.nodes[lookup.casts[-1]].attr["DstT"].type if lookup.casts else merge.dtype
        return emit.stop_gradient(scope.ref(lookup.node, lookup.op), dtype)
    rows_of = _Rows(context, scope, lookup)
    whole = merge.replaces_base()
    overlays = merge.overlays if whole is None else (whole,)
    rows = rows_of.flat(_base_rows(rows_of, lookup, scope))
    rows_train = merge.base_trains
    for overlay in overlays:
        rows = _lay_over(rows_of, overlay, rows, rows_train)
        rows_train = rows_train or overlay.trainable
    return emit.reshape(rows, rows_of.dtype, emit.shape(rows_of.raw, rows_of.dtype))


def _base_rows(rows_of: _Rows, lookup: Lookup, scope: Scope) -> str:
    """The base's rows: without gradient, except those of a base that trains which hold a trainable element."""
    merge, emit = rows_of.context.merge, rows_of.emit
    if merge.base_trains and merge.live is None:
        return rows_of.raw
    rows = emit.stop_gradient(rows_of.raw, rows_of.dtype)
    if not merge.base_trains or merge.live is None:
        return rows
    selected = rows_of.select(merge.live, "live")
    return rows_of.put(rows_of.flat(rows), selected, _again(rows_of, lookup, scope, selected.ids))


def _again(rows_of: _Rows, lookup: Lookup, scope: Scope, ids: str) -> str:
    """The same lookup with fewer ids."""
    emit, node, context = rows_of.emit, rows_of.node, rows_of.context
    if node.op in ("ResourceGather", "ResourceGatherNd"):
        return emit.resource_gather(context.handles["base"], ids, context.merge.dtype, rows_of.id_dtype)
    return emit.gather(node.input[0], ids, rows_of.dtype, rows_of.id_dtype)


def _lay_over(rows_of: _Rows, overlay: Overlay, rows: str, rows_train: bool) -> str:
    region = overlay.region
    if region.is_whole:
        return _stored(rows_of, overlay, rows_of.ids)
    if isinstance(region, Rows) and region.axis > 0:
        return _merge_listed(rows_of, overlay, region.axis, rows)
    found = row_set(region)
    if overlay.role is None and full_rows(region, found):
        return rows  # live: the base's rows came without gradient already
    selected = rows_of.select(found.rows, overlay.prefix)
    if found.spans is None:
        return rows_of.put(
            rows, selected, _merge_scattered(rows_of, overlay, found, selected, rows_of.at(rows, selected))
        )
    if full_rows(region, found):
        return rows_of.put(rows, selected, _stored(rows_of, overlay, selected.local))
    merged = _merge_box(rows_of, overlay, found, selected, rows_of.at(rows, selected), rows_train)
    return rows_of.put(rows, selected, merged)


def _stored(rows_of: _Rows, overlay: Overlay, local: str) -> str:
    """Rows of a storage that is shaped like (its rows, *box)."""
    emit, context = rows_of.emit, rows_of.context
    assert overlay.role is not None
    dtype = context.merge.dtype
    values = rows_of.cast(emit.resource_gather(context.handles[overlay.role], local, dtype, rows_of.id_dtype))
    return values if overlay.trainable else emit.stop_gradient(values, rows_of.dtype)


def _merge_box(
    rows_of: _Rows, overlay: Overlay, found: RowSet, selected: _Selected, rows: str, rows_train: bool
) -> str:
    emit = rows_of.emit
    spans = found.spans or ()
    if overlay.role is None:
        slices = [slice(0, None), *(span.as_slice for span in spans)]
        values = emit.stop_gradient(emit.strided_slice(rows, rows_of.dtype, slices), rows_of.dtype)
    else:
        values = _stored(rows_of, overlay, selected.local)
    cuts = box_cuts(spans, rows_of.row, first=1)
    return put_box(emit, rows, values, rows_of.dtype, cuts, [-1, *rows_of.row], x_trains=rows_train)


def _merge_listed(rows_of: _Rows, overlay: Overlay, axis: int, rows: str) -> str:
    """Listed indices of another axis than the first: the same of every row, put in place as in a full read."""
    emit, dtype = rows_of.emit, rows_of.dtype
    if overlay.role is None:
        indices, index_dtype = rows_of.context.geometry(f"{overlay.prefix}/indices")
        values = emit.stop_gradient(emit.gather(rows, indices, dtype, index_dtype, axis=axis), dtype)
    else:
        values = _stored(rows_of, overlay, rows_of.ids)
    return put_rows(rows_of.context, overlay, rows, values, dtype)


def _merge_scattered(rows_of: _Rows, overlay: Overlay, found: RowSet, selected: _Selected, rows: str) -> str:
    """Elements without a pattern: the packed mask of each looked-up row says where."""
    emit, context = rows_of.emit, rows_of.context
    row = math.prod(rows_of.row)
    own = f"{overlay.prefix}/row_bits"
    bits, bits_dtype = context.geometry(own if own in context.merge.geometry else f"{overlay.prefix}/bits")
    packed = PackedRows(emit, emit.gather(bits, selected.local, bits_dtype, rows_of.id_dtype), row)
    flags = packed.flags()
    current = emit.reshape(rows, rows_of.dtype, [-1, row])
    if overlay.trainable:
        return rows_of.flat(_scatter_part(rows_of, overlay, selected, packed, flags, current))
    if overlay.role is None:
        values = emit.stop_gradient(current, rows_of.dtype)
    else:
        values = _scattered_values(rows_of, overlay, selected, packed)
    return rows_of.flat(emit.select(flags, values, current, rows_of.dtype))


def _scatter_part(
    rows_of: _Rows, overlay: Overlay, selected: _Selected, packed: PackedRows, flags: str, current: str
) -> str:
    """Scattered elements that train: only they are gathered, so that no other is in the sparse gradient."""
    emit, context, dtype = rows_of.emit, rows_of.context, rows_of.context.merge.dtype
    assert overlay.role is not None
    place, place_dtype = _scattered_places(rows_of, overlay, selected, packed)
    positions = emit.where(flags)
    chosen = emit.gather_nd(place, positions, place_dtype, INT64)
    values = rows_of.cast(emit.resource_gather(context.handles[overlay.role], chosen, dtype, place_dtype))
    return emit.scatter_update(current, positions, values, rows_of.dtype, INT64)


def _scattered_values(rows_of: _Rows, overlay: Overlay, selected: _Selected, packed: PackedRows) -> str:
    """The copy is a vector in C order: a row's values start at ``starts`` and follow its set flags."""
    emit, context, dtype = rows_of.emit, rows_of.context, rows_of.context.merge.dtype
    assert overlay.role is not None
    assert not overlay.trainable, "rows clamped to the last value would be in the gradient of a part"
    place, starts_dtype = _scattered_places(rows_of, overlay, selected, packed)
    last = emit.const(np.asarray(overlay.region.count - 1, NUMPY_INTS[starts_dtype]))
    place = emit.binary("Minimum", place, last, starts_dtype)
    values = rows_of.cast(emit.resource_gather(context.handles[overlay.role], place, dtype, starts_dtype))
    return emit.stop_gradient(values, rows_of.dtype)


def _scattered_places(rows_of: _Rows, overlay: Overlay, selected: _Selected, packed: PackedRows) -> tuple[str, int]:
    """For each element of the rows its place in the storage, right where it is held, and their dtype."""
    emit, context = rows_of.emit, rows_of.context
    starts, starts_dtype = context.geometry(f"{overlay.prefix}/starts")
    first = emit.expand_dims(emit.gather(starts, selected.local, starts_dtype, rows_of.id_dtype), starts_dtype, 1)
    within = packed.ranks()
    within = within if starts_dtype == INT32 else emit.cast(within, INT32, starts_dtype)
    return emit.binary("AddV2", first, within, starts_dtype), starts_dtype
