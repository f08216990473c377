"""Reads packed masks: rows of bytes, eight flags each, the first in the lowest bit, every row padded to whole bytes.

Bytes are looked up in tables of 256 entries, which the graph computes (and TensorFlow folds) instead of holding them:
that is several times as fast as bit operations or a running sum over single flags.
"""

from __future__ import annotations

import numpy as np

from graphfreeze.lowering.emitter import BOOL, INT32, UINT8, Emitter


class PackedRows:
    """Some packed rows (k, ceil(row / 8)), taken apart."""

    def __init__(self, emit: Emitter, bits: str, row: int) -> None:
        self._emit = emit
        self._row = row
        self._bytes = emit.cast(bits, UINT8, INT32)
        powers = emit.const(np.asarray([1 << i for i in range(8)], np.int32), "powers")
        every = emit.expand_dims(emit.range(256), INT32, -1)
        set_bits = emit.binary("BitwiseAnd", every, powers, INT32)
        self._table = emit.binary("NotEqual", set_bits, emit.ints(0), INT32)

    def flags(self) -> str:
        """The flags, (k, row)."""
        return self._unpadded(self._emit.gather(self._table, self._bytes, BOOL, INT32), BOOL)

    def ranks(self) -> str:
        """For each place (k, row) the number of flags set before it in its row, as int32."""
        emit = self._emit
        ones = emit.cast(self._table, BOOL, INT32)
        # The running sum goes over bytes; within a byte it comes from a table.
        counts = emit.gather(emit.sum(ones, 1), self._bytes, INT32, INT32)
        before = emit.expand_dims(emit.cumsum(counts, 1), INT32, -1)
        within = emit.gather(emit.cumsum(ones, 1), self._bytes, INT32, INT32)
        return self._unpadded(emit.binary("AddV2", before, within, INT32), INT32)

    def _unpadded(self, x: str, dtype: int) -> str:
        """(k, bytes, 8) -> (k, row)."""
        padded = -(-self._row // 8) * 8
        rows = self._emit.reshape(x, dtype, [-1, padded])
        if padded == self._row:
            return rows
        return self._emit.contiguous_slice(rows, dtype, [0, 0], [-1, self._row])
