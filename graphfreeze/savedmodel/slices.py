"""Keys and places of the parts of a partitioned TF1 variable.

A partitioned variable has one entry under its name that lists its slices and holds no data, and one entry per slice
under a binary key: zero, the name, the rank, then start and length per axis, in Google's *ordered code* (byte order is
value order). See EncodeTensorNameSlice in tensorflow/core/util/saved_tensor_slice_util.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphfreeze.savedmodel.protos import Message

_WHOLE = -1
_TERMINATOR = b"\x00\x01"


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """A box of a tensor: start and length per axis; length -1 takes the whole axis."""

    starts: tuple[int, ...]
    lengths: tuple[int, ...]

    @classmethod
    def from_proto(cls, proto: Message) -> TensorSlice:
        """From a TensorSliceProto."""
        return cls(
            tuple(extent.start for extent in proto.extent),
            tuple(extent.length if extent.HasField("length") else _WHOLE for extent in proto.extent),
        )

    def key(self, name: bytes) -> bytes:
        """The key under which this part of variable ``name`` lies in the index."""
        key = _encode_number(0) + _encode_string(name) + _encode_number(len(self.starts))
        for start, length in zip(self.starts, self.lengths, strict=True):
            key += _encode_signed(start) + _encode_signed(length)
        return key

    def index(self, shape: Sequence[int]) -> tuple[slice, ...]:
        """The box as a numpy index of a tensor of ``shape``; ``ValueError`` when it does not lie inside."""
        if len(shape) != len(self.starts):
            raise ValueError(f"a slice of rank {len(self.starts)} does not fit shape {list(shape)}")
        index = []
        for axis, (start, length, size) in enumerate(zip(self.starts, self.lengths, shape, strict=True)):
            stop = size if length == _WHOLE else start + length
            if not 0 <= start <= stop <= size:
                raise ValueError(f"a slice takes {start} to {stop} of axis {axis}, which has {size} elements")
            index.append(slice(start, stop))
        return tuple(index)

    def shape_in(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of this part of a tensor of ``shape``."""
        return tuple(part.stop - part.start for part in self.index(shape))


def slice_key_name(key: bytes) -> bytes | None:
    """The variable that a binary slice key belongs to; ``None`` when it is not a slice key."""
    if key[:1] != b"\0":
        return None
    end = key.find(_TERMINATOR, 1)
    # A terminator cannot occur inside the name: its zero bytes are always followed by 0xff.
    return None if end < 0 else key[1:end].replace(b"\x00\xff", b"\x00").replace(b"\xff\x00", b"\xff")


def _encode_number(number: int) -> bytes:
    """Length byte, then the number big-endian without leading zeros."""
    size = (number.bit_length() + 7) // 8
    return bytes([size]) + number.to_bytes(size, "big")


def _encode_string(text: bytes) -> bytes:
    escaped = b"".join(b"\x00\xff" if b == 0 else b"\xff\x00" if b == 0xFF else bytes([b]) for b in text)
    return escaped + _TERMINATOR


def _encode_signed(number: int) -> bytes:
    """Two's complement in as few 7-bit groups as hold it, with a unary length in the high bits of the first bytes."""
    magnitude = ~number if number < 0 else number
    size = magnitude.bit_length() // 7 + 1
    header = ((1 << size) - 1) << (8 * size - size)
    body = number & ((1 << (8 * size)) - 1)
    return (body ^ header).to_bytes(size, "big")
