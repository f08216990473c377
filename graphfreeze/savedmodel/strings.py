"""String tensors as a bundle stores them.

    bytes := length:varint* masked-crc-of-the-lengths:u32 string*

Both checksums take each length as a little-endian uint32 (uint64 when it does not fit), not as the varint on disk. The
entry's own checksum covers those numbers, then the stored checksum, then the strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from graphfreeze.savedmodel.checksum import extend, mask
from graphfreeze.savedmodel.table import decode_varint, encode_varint

_UINT32_MAX = 0xFFFFFFFF


def encode_strings(values: Sequence[bytes]) -> tuple[bytes, int]:
    """The stored bytes and the masked checksum of the entry."""
    lengths = [len(value) for value in values]
    lengths_crc = _lengths_crc(lengths)
    stored_crc = mask(lengths_crc).to_bytes(4, "little")
    crc = extend(lengths_crc, stored_crc)
    joined = b"".join(values)
    crc = extend(crc, joined)
    return b"".join(map(encode_varint, lengths)) + stored_crc + joined, mask(crc)


def decode_strings(data: bytes, count: int, check: bool = True) -> tuple[list[bytes], int]:
    """The strings and the masked checksum they have; ``ValueError`` says what is wrong with damaged bytes."""
    if count + 4 > len(data):
        raise ValueError(f"{count} strings cannot lie in {len(data)} bytes")
    position = 0
    lengths = []
    for _ in range(count):
        length, position = decode_varint(data, position, len(data))
        lengths.append(length)
    stored_crc = data[position : position + 4]
    position += 4
    if sum(lengths) != len(data) - position:
        raise ValueError(f"its strings should take {sum(lengths)} bytes, found {len(data) - position}")
    lengths_crc = _lengths_crc(lengths)
    if check and mask(lengths_crc).to_bytes(4, "little") != stored_crc:
        raise ValueError("the checksum of its string lengths does not match")
    values = []
    for length in lengths:
        values.append(data[position : position + length])
        position += length
    return values, mask(extend(extend(lengths_crc, stored_crc), data[len(data) - sum(lengths) :]))


def _lengths_crc(lengths: Iterable[int]) -> int:
    return extend(0, b"".join(length.to_bytes(4 if length <= _UINT32_MAX else 8, "little") for length in lengths))


def as_byte_strings(array: np.ndarray[Any, Any]) -> list[bytes]:
    """The elements of an object array of bytes, in row-major order."""
    values: list[bytes] = array.reshape(-1).tolist()
    for value in values:
        if not isinstance(value, bytes):
            raise TypeError(f"a string tensor takes bytes, got {type(value).__name__}")
    return values
