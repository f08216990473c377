"""Reads and writes the table file under a bundle's index (LevelDB's SSTable format, as in tensorflow/core/lib/io).

    table  := block* metaindex-block index-block footer
    block  := entry* restart-offset:u32* restart-count:u32, then a trailer: type:u8 masked-crc:u32
    entry  := shared:varint unshared:varint length:varint key-suffix value
    footer := metaindex-handle index-handle, filled with zeros to 40 bytes, magic:u64
    handle := offset:varint size:varint

An index entry's value is the handle of one data block; its key is at least the last key of that block. Everything is
checked before use, because the file may be damaged or hostile: time and memory are bounded by the size of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from graphfreeze.errors import InputOutputError
from graphfreeze.savedmodel.checksum import extend, mask
from graphfreeze.savedmodel.snappy import unpack_snappy

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TRAILER = 5
_PLAIN, _SNAPPY = 0, 1
_RESTART_INTERVAL = 16
_BLOCK_SIZE = 1 << 18
# A key is stored as what differs from the key before it; honest keys expand about as often as a block restarts.
_EXPANSION = 64
_EXPANSION_FLOOR = 1 << 24

Entry = tuple[bytes, bytes]


def read_table(path: Path) -> list[Entry]:
    """All entries in key order; any damage is an error that names the file and the place."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputOutputError(f"cannot read '{path}': {error.strerror}") from error
    return list(_Reader(path, data).entries())


def build_table(entries: Iterable[Entry], block_size: int = _BLOCK_SIZE) -> bytes:
    """The bytes of a table that holds ``entries``, whose keys must rise strictly."""
    out = bytearray()
    index = _BlockBuilder(restart_interval=1)
    block = _BlockBuilder(_RESTART_INTERVAL)
    for key, value in entries:
        if len(block.data) >= block_size:
            index.add(block.last_key, _append_block(out, block.finish()))
            block = _BlockBuilder(_RESTART_INTERVAL, block.last_key)
        block.add(key, value)
    if block.data:
        index.add(block.last_key, _append_block(out, block.finish()))
    metaindex_handle = _append_block(out, _BlockBuilder(1).finish())
    index_handle = _append_block(out, index.finish())
    return bytes(out) + (metaindex_handle + index_handle).ljust(_FOOTER - 8, b"\0") + struct.pack("<Q", _MAGIC)


def encode_varint(number: int) -> bytes:
    """LEB128, the variable-length integer of tables, handles and string lengths."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def decode_varint(data: bytes | memoryview, position: int, end: int) -> tuple[int, int]:
    """The number at ``position`` and the position after it; ``ValueError`` when it does not end before ``end``."""
    number = 0
    for shift in range(0, 64, 7):
        if position >= end:
            raise ValueError("a variable-length number is cut off")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise ValueError("a variable-length number is longer than 64 bits")


def _append_block(out: bytearray, contents: bytes) -> bytes:
    """Appends a block with its trailer; returns its handle."""
    handle = encode_varint(len(out)) + encode_varint(len(contents))
    kind = bytes([_PLAIN])
    out += contents + kind + struct.pack("<I", mask(extend(extend(0, contents), kind)))
    return handle


class _BlockBuilder:
    """Collects entries of one block; drops what a key shares with the one before it."""

    def __init__(self, restart_interval: int, previous_key: bytes | None = None) -> None:
        self.data = bytearray()
        self._last_key = previous_key
        self._restarts = [0]
        self._since_restart = 0
        self._interval = restart_interval

    @property
    def last_key(self) -> bytes:
        return self._last_key or b""

    def add(self, key: bytes, value: bytes) -> None:
        last = self._last_key
        if last is not None and key <= last:
            raise ValueError(f"table keys must rise strictly: {key!r} came after {last!r}")
        shared = 0
        if self.data and self._since_restart == self._interval:
            self._restarts.append(len(self.data))
            self._since_restart = 0
        elif self.data and last is not None:
            shared = _common_prefix(last, key)
        self.data += encode_varint(shared) + encode_varint(len(key) - shared) + encode_varint(len(value))
        self.data += key[shared:] + value
        self._since_restart += 1
        self._last_key = key

    def finish(self) -> bytes:
        return bytes(self.data) + struct.pack(f"<{len(self._restarts) + 1}I", *self._restarts, len(self._restarts))


def _common_prefix(left: bytes, right: bytes) -> int:
    limit = min(len(left), len(right))
    for position in range(limit):
        if left[position] != right[position]:
            return position
    return limit


class _Reader:
    """One pass over a table; ``fail`` is the only way out when something does not fit."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path = path
        self._data = data
        self._key_budget = _EXPANSION_FLOOR + _EXPANSION * len(data)

    def fail(self, problem: str) -> InputOutputError:
        return InputOutputError(
            f"'{self._path}' is damaged or not a checkpoint index: {problem}. "
            "Copy the model again from where it came from"
        )

    def entries(self) -> Iterator[Entry]:
        last_key: bytes | None = None
        data_end = 0
        for _, value in self._block_entries(*self._index_handle(), "the index block"):
            offset, size = self._handle(value, 0)[:2]
            # Blocks lie one after the other; this also keeps an index from naming one block a million times.
            if offset < data_end:
                raise self.fail(f"the data block at byte {offset} overlaps the one before it, which ends at {data_end}")
            data_end = offset + size + _TRAILER
            for key, entry in self._block_entries(offset, size, f"the data block at byte {offset}"):
                if last_key is not None and key <= last_key:
                    raise self.fail(f"key {_shown(key)} comes after {_shown(last_key)}, but keys must rise strictly")
                last_key = key
                yield key, entry

    def _index_handle(self) -> tuple[int, int]:
        size = len(self._data)
        if size < _FOOTER:
            raise self.fail(f"it has {size} bytes, but the footer alone takes {_FOOTER}")
        (magic,) = struct.unpack_from("<Q", self._data, size - 8)
        if magic != _MAGIC:
            raise self.fail(f"it ends with the number {magic:#018x} instead of the table mark {_MAGIC:#018x}")
        footer = self._data[size - _FOOTER : size - 8]
        _, _, position = self._handle(footer, 0)
        return self._handle(footer, position)[:2]

    def _handle(self, data: bytes, position: int) -> tuple[int, int, int]:
        """Offset and size of a block, and the position after the handle."""
        try:
            offset, position = decode_varint(data, position, len(data))
            size, position = decode_varint(data, position, len(data))
        except ValueError as error:
            raise self.fail(f"the place of a block cannot be read: {error}") from error
        if offset + size + _TRAILER > len(self._data) - _FOOTER:
            raise self.fail(
                f"a block should lie at bytes {offset} to {offset + size + _TRAILER}, "
                f"but the blocks end at byte {len(self._data) - _FOOTER}"
            )
        return offset, size, position

    def _block_entries(self, offset: int, size: int, what: str) -> Iterator[Entry]:
        block = self._contents(offset, size, what)
        end = self._entries_end(block, what)
        position, key = 0, b""
        while position < end:
            try:
                shared, position = decode_varint(block, position, end)
                unshared, position = decode_varint(block, position, end)
                length, position = decode_varint(block, position, end)
            except ValueError as error:
                raise self.fail(f"an entry of {what} cannot be read: {error}") from error
            if shared > len(key) or unshared + length > end - position:
                raise self.fail(f"an entry of {what} reaches beyond its end")
            self._key_budget -= shared + unshared
            if self._key_budget < 0:
                raise self.fail("its keys unpack to far more bytes than the file has")
            key = key[:shared] + block[position : position + unshared]
            position += unshared
            yield key, block[position : position + length]
            position += length

    def _contents(self, offset: int, size: int, what: str) -> bytes:
        """The bytes of a block, checked and unpacked."""
        kind, stored = struct.unpack_from("<BI", self._data, offset + size)
        found = mask(extend(0, self._data[offset : offset + size + 1]))
        if stored != found:
            raise self.fail(f"the checksum of {what} is {found:#010x}, expected {stored:#010x}")
        block = self._data[offset : offset + size]
        if kind == _PLAIN:
            return block
        if kind != _SNAPPY:
            raise self.fail(f"{what} is compressed by method {kind}, expected none (0) or Snappy (1)")
        try:
            return unpack_snappy(block)
        except ValueError as error:
            raise self.fail(f"{what} cannot be unpacked: {error}") from error

    def _entries_end(self, block: bytes, what: str) -> int:
        """Where the entries of a block stop and its restart offsets begin."""
        if len(block) < 4:
            raise self.fail(f"{what} has {len(block)} bytes, too few for its restart count")
        restarts = int.from_bytes(block[-4:], "little")
        if 4 * (restarts + 1) > len(block):
            raise self.fail(f"{what} claims {restarts} restart offsets, more than its {len(block)} bytes hold")
        return len(block) - 4 * (restarts + 1)


def _shown(key: bytes) -> str:
    text = key.decode("utf-8", "backslashreplace")
    return f"'{text[:80]}...'" if len(text) > 80 else f"'{text}'"
