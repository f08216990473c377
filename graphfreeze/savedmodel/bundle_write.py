"""Writes tensor bundles: beside a source, or packed anew.

``write_bundle`` leaves the source's data shards as they are, under new names, and puts all new tensors into one more
shard: its cost does not depend on the size of the weights. ``repack_bundle`` copies the tensors that are kept into one
compact shard. In both the entries of untouched tensors stay equal as messages.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

import numpy as np

from graphfreeze.errors import InputOutputError, InternalError
from graphfreeze.savedmodel.ahead import ShardCopies
from graphfreeze.savedmodel.bundle import Array, Bundle, index_path, key_bytes, shard_path
from graphfreeze.savedmodel.checksum import Buffer, extend, mask
from graphfreeze.savedmodel.dtypes import DT_STRING, NUMPY_DTYPES, base_dtype, dtype_number
from graphfreeze.savedmodel.files import copy_file, copy_range, link_file, reported, write_file
from graphfreeze.savedmodel.protos import BundleEntryProto, BundleHeaderProto, Message
from graphfreeze.savedmodel.strings import as_byte_strings, encode_strings
from graphfreeze.savedmodel.table import build_table

Weights: TypeAlias = Literal["copy", "link"]
Progress: TypeAlias = Callable[[int, int], None]
"""Called with bytes written and bytes to write."""

_PIECE = 1 << 24


@dataclass(frozen=True, slots=True)
class StreamedTensor:
    """A tensor that is made piece by piece, so that it never lies in memory whole. Not for strings."""

    data_type: int
    shape: tuple[int, ...]
    chunks: Callable[[], Iterable[Array | bytes]]
    """Gives the elements in row-major order, in pieces of any size, little-endian."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The tensor that the source holds under ``key``, under a further or another name; its bytes are not touched."""

    key: str


Put: TypeAlias = Array | StreamedTensor | StoredTensor


@dataclass(frozen=True, slots=True)
class WrittenBundle:
    """What a write made: all its files, and those that are hard links to the source's."""

    files: tuple[Path, ...]
    linked: tuple[Path, ...]


def write_bundle(
    prefix: Path,
    *,
    source: Bundle | None,
    put: Mapping[str, Put],
    drop: Collection[str] = (),
    weights: Weights = "copy",
    progress: Progress | None = None,
    protect: bool = True,
    copies: ShardCopies | None = None,
) -> WrittenBundle:
    """Writes a bundle with the source's tensors but ``drop``, and those in ``put`` (which replace).

    With ``weights="link"`` the source's shards get a second name instead of a copy; both names are read-only from then
    on, unless ``protect`` leaves that to the caller. ``copies`` are copies of the shards that were begun before.
    """
    _check_request(prefix, source, put, drop)
    old_shards = source.header.num_shards if source is not None else 0
    new = {key: value for key, value in put.items() if not isinstance(value, StoredTensor)}
    shards = old_shards + (1 if new or not old_shards else 0)
    entries = _kept_entries(source, put, drop)
    sizes = source.shard_sizes() if source is not None else {}
    meter = _Meter(progress, (sum(sizes.values()) if weights == "copy" else 0) + sum(map(_size, new.values())))
    old_files = [shard_path(prefix, shard, shards) for shard in sizes]
    files = old_files.copy()
    if shards > old_shards:
        files.append(shard_path(prefix, old_shards, shards))
        with _NewShard(files[-1]) as writer:
            entries |= _write_tensors(writer, old_shards, new, source, meter)
    files.append(_write_index(prefix, source, shards, entries))
    # Last, because copies that were begun before may still be under way.
    for shard, target in zip(sizes, old_files, strict=True):
        assert source is not None
        if weights == "link":
            link_file(source.shard_path(shard), target)
        elif copies is not None:
            copies.take(shard, target, meter.tick)
        else:
            copy_file(source.shard_path(shard), target, meter.tick)
    linked = old_files if weights == "link" else []
    if protect:
        protect_files(linked)
    return WrittenBundle(tuple(files), tuple(linked))


def repack_bundle(
    prefix: Path,
    source: Bundle | None,
    *,
    put: Mapping[str, Put],
    drop: Collection[str] = (),
    progress: Progress | None = None,
) -> WrittenBundle:
    """Writes the same tensors as ``write_bundle`` into one shard without gaps, in key order."""
    _check_request(prefix, source, put, drop)
    new = {key: value for key, value in put.items() if not isinstance(value, StoredTensor)}
    entries = _kept_entries(source, put, drop)
    meter = _Meter(progress, sum(entry.size for entry in entries.values()) + sum(map(_size, new.values())))
    shard = shard_path(prefix, 0, 1)
    with _NewShard(shard) as writer:
        if source is not None:
            _move_tensors(writer, source, entries, meter)
        entries |= _write_tensors(writer, 0, new, source, meter)
    return WrittenBundle((shard, _write_index(prefix, source, 1, entries)), ())


def protect_files(paths: Iterable[Path]) -> list[tuple[Path, int]]:
    """Takes away write permission; a hard link shares it with its source. Returns what to give to ``restore_modes``."""
    before = []
    for path in paths:
        with reported("protect", path):
            mode = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
        before.append((path, mode))
    return before


def restore_modes(before: Iterable[tuple[Path, int]]) -> None:
    """Undoes ``protect_files``."""
    for path, mode in before:
        path.chmod(mode)


class _Meter:
    """Adds up the bytes written for a progress report."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def tick(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, max(self._total, self._done))


def _check_request(prefix: Path, source: Bundle | None, put: Mapping[str, Put], drop: Collection[str]) -> None:
    known = source.entries if source is not None else {}
    for key in [*drop, *(value.key for value in put.values() if isinstance(value, StoredTensor))]:
        if key not in known:
            raise InternalError(f"the source bundle has no tensor '{key}' to drop or to keep")
    for key in put:
        if not key or key.startswith("\0"):
            raise InternalError(f"a tensor cannot be named {key!r}")
    if index_path(prefix).exists():
        raise InputOutputError(f"'{index_path(prefix)}' exists already")


def _kept_entries(source: Bundle | None, put: Mapping[str, Put], drop: Collection[str]) -> dict[bytes, Message]:
    """Entries whose bytes the source already holds, by the key they will have; copies, free to change."""
    entries: dict[bytes, Message] = {}
    if source is None:
        return entries
    gone = {*put, *drop}
    gone_parts = {part.key(key_bytes(key)) for key in gone & source.entries.keys() for part, _ in source.parts(key)}
    for key, entry in source.entries.items():
        if key not in gone:
            entries[key_bytes(key)] = _copied(entry)
    for raw_key, entry in source.raw_entries.items():
        if raw_key not in gone_parts:
            entries[raw_key] = _copied(entry)
    for key, value in put.items():
        if isinstance(value, StoredTensor):
            entries[key_bytes(key)] = _copied(source.entries[value.key])
            for part, entry in source.parts(value.key):
                entries[part.key(key_bytes(key))] = _copied(entry)
    return entries


def _copied(message: Message) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


class _NewShard:
    """A data shard being written: errors become ours, and it is synced when it closes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> BinaryIO:
        with reported("write", self._path):
            # Unbuffered, because copy_range writes to the same descriptor.
            self._file = self._path.open("xb", buffering=0)
        return self._file

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        with self._file, reported("write", self._path):
            if isinstance(error, OSError):
                raise error
            os.fsync(self._file.fileno())


def _move_tensors(writer: BinaryIO, source: Bundle, entries: Mapping[bytes, Message], meter: _Meter) -> None:
    """Copies the bytes of ``entries`` into the new shard and points the entries at them."""
    moved: dict[tuple[int, int, int], int] = {}
    position = 0
    readers: dict[int, BinaryIO] = {}
    try:
        for _, entry in sorted(entries.items()):
            if entry.slices:
                continue  # only lists its parts
            place = (entry.shard_id, entry.offset, entry.size)
            if place not in moved:
                if entry.shard_id not in readers:
                    readers[entry.shard_id] = source.shard_path(entry.shard_id).open("rb")
                copy_range(readers[entry.shard_id].fileno(), writer.fileno(), entry.offset, entry.size, meter.tick)
                moved[place] = position
                position += entry.size
            entry.shard_id, entry.offset = 0, moved[place]
    finally:
        for reader in readers.values():
            reader.close()


def _write_tensors(
    writer: BinaryIO, shard: int, new: Mapping[str, Put], source: Bundle | None, meter: _Meter
) -> dict[bytes, Message]:
    """Appends the new tensors in key order; returns their entries."""
    entries = {}
    for key in sorted(new, key=key_bytes):
        offset = os.lseek(writer.fileno(), 0, os.SEEK_CUR)
        entry = _write_tensor(writer, new[key], meter)
        entry.shard_id, entry.offset = shard, offset
        entry.size = os.lseek(writer.fileno(), 0, os.SEEK_CUR) - offset
        if source is not None and key in source.entries:
            _keep_type(entry, source.entries[key])
        entries[key_bytes(key)] = entry
    return entries


def _keep_type(entry: Message, old: Message) -> None:
    """A new value of a quantised tensor comes as plain integers and stays quantised."""
    stored = NUMPY_DTYPES.get(base_dtype(entry.dtype))
    if stored is not None and stored == NUMPY_DTYPES.get(base_dtype(old.dtype)):
        entry.dtype = old.dtype


def _write_tensor(writer: BinaryIO, value: Put, meter: _Meter) -> Message:
    assert not isinstance(value, StoredTensor)
    if isinstance(value, StreamedTensor):
        entry = BundleEntryProto(dtype=value.data_type)
        chunks: Iterable[Buffer] = value.chunks()
    else:
        entry = BundleEntryProto(dtype=dtype_number(value.dtype))
        chunks = _array_chunks(value)
    entry.shape.SetInParent()
    for size in value.shape:
        entry.shape.dim.add(size=size)
    if entry.dtype == DT_STRING:
        assert not isinstance(value, StreamedTensor)
        data, entry.crc32c = encode_strings(as_byte_strings(value))
        _write_piece(writer, data, meter)
        return entry
    crc = written = 0
    for chunk in chunks:
        raw = chunk if isinstance(chunk, bytes) else np.ascontiguousarray(chunk).reshape(-1).view(np.uint8)
        crc = extend(crc, raw)
        written += len(raw)
        _write_piece(writer, raw, meter)
    expected = _size(value)
    if written != expected:
        raise InternalError(f"a tensor of shape {list(value.shape)} gave {written} bytes, expected {expected}")
    entry.crc32c = mask(crc)
    return entry


def _array_chunks(array: Array) -> Iterator[Array]:
    """The elements in row-major order and little-endian, in pieces where the array lies in one piece of memory."""
    if array.dtype == np.dtype(object):
        return
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.byteorder == ">":
        flat = flat.astype(flat.dtype.newbyteorder("<"))
    step = max(1, _PIECE // max(1, flat.itemsize))
    for start in range(0, flat.size, step):
        yield flat[start : start + step]


def _write_piece(writer: BinaryIO, data: Buffer, meter: _Meter) -> None:
    view = memoryview(data)  # type: ignore[arg-type]  # numpy arrays are buffers, which their stubs say since Python 3.12
    while view:
        written = writer.write(view[:_PIECE])
        meter.tick(written)
        view = view[written:]


def _size(value: Put) -> int:
    """Bytes a new tensor takes; strings are only estimated."""
    if isinstance(value, StreamedTensor):
        return math.prod(value.shape) * NUMPY_DTYPES[base_dtype(value.data_type)].itemsize
    assert not isinstance(value, StoredTensor)
    return value.nbytes


def _write_index(prefix: Path, source: Bundle | None, shards: int, entries: Mapping[bytes, Message]) -> Path:
    header = BundleHeaderProto(num_shards=shards, endianness=BundleHeaderProto.LITTLE)
    header.version.producer = 1
    if source is not None:
        header.CopyFrom(source.header)
        header.num_shards = shards
    rows = [(b"", header.SerializeToString(deterministic=True))]
    rows += [(key, entry.SerializeToString(deterministic=True)) for key, entry in sorted(entries.items())]
    path = index_path(prefix)
    write_file(path, build_table(rows))
    return path
