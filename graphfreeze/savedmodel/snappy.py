"""Unpacks Snappy blocks: some builds of TensorFlow 1 and 2.1 compress the index of a bundle, and the format is small.

stream  := unpacked-length:varint element*
element := tag:u8, whose two low bits say what follows: 0 a literal, 1-3 a copy of earlier output with an
           offset of 11, 16 or 32 bits
"""

from __future__ import annotations

# A copy of 64 bytes takes 3 bytes, a short copy of 11 bytes takes 2: no honest stream grows more than this.
_MOST_EXPANSION = 64


def unpack_snappy(data: bytes) -> bytes:
    """The unpacked bytes; ``ValueError`` says what is wrong with a damaged stream."""
    length, position = _length(data)
    if length > _MOST_EXPANSION * len(data):
        raise ValueError(f"{len(data)} bytes cannot unpack to {length}")
    out = bytearray()
    while position < len(data):
        tag = data[position]
        if tag & 3 == 0:
            size, position = _literal_size(data, position)
            if size > len(data) - position:
                raise ValueError("a literal is cut off")
            out += data[position : position + size]
            position += size
        else:
            size, offset, position = _copy(data, position)
            if not 0 < offset <= len(out):
                raise ValueError(f"a copy reaches {offset} bytes back, but only {len(out)} were unpacked")
            # A copy may overlap its own output: that is how a run is stored.
            piece = bytes(out[-offset : len(out) - offset + size])
            out += (piece * (size // len(piece) + 1))[:size]
        if len(out) > length:
            raise ValueError(f"it unpacks to more than the {length} bytes it claims")
    if len(out) != length:
        raise ValueError(f"it unpacks to {len(out)} bytes, expected {length}")
    return bytes(out)


def _length(data: bytes) -> tuple[int, int]:
    length = 0
    for position, byte in enumerate(data[:5]):
        length |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return length, position + 1
    raise ValueError("its length is cut off")


def _literal_size(data: bytes, position: int) -> tuple[int, int]:
    size = data[position] >> 2
    position += 1
    if size < 60:
        return size + 1, position
    extra = size - 59
    if position + extra > len(data):
        raise ValueError("the length of a literal is cut off")
    return int.from_bytes(data[position : position + extra], "little") + 1, position + extra


def _copy(data: bytes, position: int) -> tuple[int, int, int]:
    """Length and offset of a copy, and the position after it."""
    tag = data[position]
    position += 1
    extra = (0, 1, 2, 4)[tag & 3]
    if position + extra > len(data):
        raise ValueError("a copy is cut off")
    offset = int.from_bytes(data[position : position + extra], "little")
    if tag & 3 == 1:
        return (tag >> 2 & 7) + 4, (tag >> 5) << 8 | offset, position + extra
    return (tag >> 2) + 1, offset, position + extra
