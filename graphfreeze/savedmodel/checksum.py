"""Masked CRC-32C, the checksum of every block of a table and every tensor of a bundle.

A checksum stored next to data that may hold checksums itself is *masked* (rotated and shifted by a constant), as in
LevelDB. The sum is made by the ``google-crc32c`` wheel at memory speed; in Python it would take seconds per megabyte.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import google_crc32c
import numpy as np

Buffer = bytes | bytearray | memoryview | np.ndarray[Any, Any]

_MASK_DELTA = 0xA282EAD8
_UINT32 = 0xFFFFFFFF
# Small enough to stay in cache and to let a signal through between two calls.
_STEP = 1 << 24


def extend(crc: int, data: Buffer) -> int:
    """The plain crc of what ``crc`` stands for, followed by ``data``."""
    if isinstance(data, bytes) and len(data) <= _STEP:
        return int(google_crc32c.extend(crc, data))
    # The C function takes read-only buffers and arrays, but neither bytearray nor memoryview.
    view = data.reshape(-1).view(np.uint8) if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    for start in range(0, view.size, _STEP):
        crc = int(google_crc32c.extend(crc, view[start : start + _STEP]))
    return crc


def mask(crc: int) -> int:
    """The form in which a crc is stored."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & _UINT32


def unmask(masked: int) -> int:
    """The crc that a stored number stands for."""
    rotated = (masked - _MASK_DELTA) & _UINT32
    return ((rotated >> 17) | (rotated << 15)) & _UINT32


def masked_crc(chunks: Iterable[Buffer]) -> int:
    """The stored checksum of all chunks together."""
    crc = 0
    for chunk in chunks:
        crc = extend(crc, chunk)
    return mask(crc)
