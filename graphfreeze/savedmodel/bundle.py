"""Reads a tensor bundle: the checkpoint under ``variables/`` as an index table and data shards.

The index maps "" to a header and each tensor's name to an entry: type, shape, shard, offset, size and checksum. All
entries are checked against the shards when the bundle is opened, so that nothing later can reach outside a file; a
tensor's bytes are read only when asked for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from graphfreeze.errors import InputOutputError
from graphfreeze.savedmodel.checksum import extend, mask
from graphfreeze.savedmodel.dtypes import DT_STRING, NUMPY_DTYPES, DType, base_dtype, dtype_name, numpy_dtype
from graphfreeze.savedmodel.protos import BundleEntryProto, BundleHeaderProto, Message
from graphfreeze.savedmodel.slices import TensorSlice
from graphfreeze.savedmodel.strings import decode_strings
from graphfreeze.savedmodel.table import read_table

Array = np.ndarray[Any, Any]

_MOST_SHARDS = 99_999  # what the five digits of a shard's name can count
_MOST_AXES = 64  # numpy's limit; TensorFlow's own is higher, its kernels' far lower
_MAP_FROM = 1 << 20  # smaller tensors are quicker to read than to map
_WINDOW = 1 << 22  # of a large tensor, mapped at once


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle. ``entries`` and ``raw_entries`` are in key order and must not be changed."""

    prefix: Path
    """Path without ``.index``, such as ``DIR/variables/variables``."""
    header: Message
    entries: Mapping[str, Message]
    """BundleEntryProto per tensor name."""
    raw_entries: Mapping[bytes, Message]
    """BundleEntryProto per binary key: the parts of partitioned variables."""

    def shard_path(self, shard: int) -> Path:
        """The file of one data shard."""
        return shard_path(self.prefix, shard, self.header.num_shards)

    def shard_sizes(self) -> dict[int, int]:
        """Bytes of each data shard that exists."""
        paths = {shard: self.shard_path(shard) for shard in range(self.header.num_shards)}
        return {shard: path.stat().st_size for shard, path in paths.items() if path.exists()}

    def shape(self, key: str) -> tuple[int, ...]:
        """The shape of the whole tensor, also of a partitioned one."""
        return _shape(self._entry(key))

    def dtype(self, key: str) -> DType:
        """The numpy dtype; ``object`` for strings."""
        return numpy_dtype(self._entry(key).dtype)

    def data_type(self, key: str) -> int:
        """TensorFlow's number of the type."""
        return int(self._entry(key).dtype)

    def nbytes(self, key: str) -> int:
        """Bytes of the tensor on disk, the parts of a partitioned one together."""
        entry = self._entry(key)
        return sum(part.size for _, part in self.parts(key)) if entry.slices else int(entry.size)

    def read_bytes(self, key: str) -> bytes:
        """The tensor's bytes as stored, not checked; a partitioned one is put together first."""
        entry = self._entry(key)
        if entry.slices:
            return self.read_tensor(key, check=False).tobytes()
        return bytes(self._stored(entry, key))

    def read_tensor(self, key: str, *, check: bool = True) -> Array:
        """The tensor as a read-only array, large ones mapped from the file; ``check`` compares the checksum."""
        entry = self._entry(key)
        array = self._assemble(entry, key, check) if entry.slices else self._read_entry(entry, key, check)
        array.flags.writeable = False
        return array

    def parts(self, key: str) -> Iterator[tuple[TensorSlice, Message]]:
        """The slices of a partitioned variable, each with the entry that holds its data."""
        name = key_bytes(key)
        for proto in self._entry(key).slices:
            part = TensorSlice.from_proto(proto)
            entry = self.raw_entries.get(part.key(name))
            if entry is None:
                raise self.fail(f"the slice at {list(part.starts)} of '{key}' has no entry")
            yield part, entry

    def fail(self, problem: str) -> InputOutputError:
        """The error to raise for damage in this bundle."""
        return damaged(self.prefix, problem)

    def _entry(self, key: str) -> Message:
        entry = self.entries.get(key)
        if entry is None:
            raise InputOutputError(f"'{self.prefix}.index' has no tensor '{key}'")
        return entry

    def _stored(self, entry: Message, key: str) -> Array:
        """The bytes of one entry as an array of uint8."""
        path = self.shard_path(entry.shard_id)
        try:
            if entry.size >= _MAP_FROM:
                return np.memmap(path, np.uint8, "r", entry.offset, (entry.size,))
            with path.open("rb") as shard:
                shard.seek(entry.offset)
                data = shard.read(entry.size)
        except OSError as error:
            raise InputOutputError(f"cannot read '{path}': {error.strerror}") from error
        except ValueError as error:  # from memmap: the file has shrunk since the bundle was opened
            raise self.fail(f"'{key}' is cut off in '{path.name}'") from error
        if len(data) != entry.size:
            raise self.fail(f"'{key}' is cut off in '{path.name}': expected {entry.size} bytes, found {len(data)}")
        return np.frombuffer(data, np.uint8)

    def _read_entry(self, entry: Message, key: str, check: bool) -> Array:
        dtype, shape = numpy_dtype(entry.dtype), _shape(entry)
        stored = self._stored(entry, key)
        if base_dtype(entry.dtype) == DT_STRING:
            try:
                values, found = decode_strings(stored.tobytes(), math.prod(shape), check)
            except ValueError as error:
                raise self.fail(f"the strings of '{key}' cannot be read: {error}") from error
        else:
            found = self._checksum(entry, stored) if check else entry.crc32c
        if check and found != entry.crc32c:
            raise self.fail(f"the checksum of tensor '{key}' is {found:#010x}, expected {entry.crc32c:#010x}")
        if base_dtype(entry.dtype) == DT_STRING:
            array = np.empty(len(values), object)
            array[:] = values
            return array.reshape(shape)
        if entry.offset % dtype.itemsize and isinstance(stored, np.memmap):
            stored = np.array(stored)  # numpy works on unaligned data, but slowly, and extension types not always
        return stored.view(dtype).reshape(shape)

    def _checksum(self, entry: Message, stored: Array) -> int:
        """A mapped tensor is mapped once more, a window at a time: pages of a map that were touched count as memory."""
        if not isinstance(stored, np.memmap):
            return mask(extend(0, stored))
        crc, path, end = 0, self.shard_path(entry.shard_id), entry.offset + entry.size
        for start in range(entry.offset, end, _WINDOW):
            crc = extend(crc, np.memmap(path, np.uint8, "r", start, (min(_WINDOW, end - start),)))
        return mask(crc)

    def _assemble(self, entry: Message, key: str, check: bool) -> Array:
        """Puts the parts of a partitioned variable together; together they must cover it exactly once."""
        shape, dtype = _shape(entry), numpy_dtype(entry.dtype)
        parts = list(self.parts(key))
        found = sum(math.prod(_shape(part)) for _, part in parts)
        # Before anything is allocated: parts are bounded by the files, the shape of the whole is not.
        if found != math.prod(shape):
            raise self.fail(f"the slices of '{key}' hold {found} elements, expected {math.prod(shape)}")
        whole = np.zeros(shape, dtype)
        covered = np.zeros(shape, np.bool_)
        for part, stored in parts:
            try:
                index, part_shape = part.index(shape), part.shape_in(shape)
            except ValueError as error:
                raise self.fail(f"'{key}': {error}") from error
            if part_shape != _shape(stored) or stored.dtype != entry.dtype:
                raise self.fail(f"the slice at {list(part.starts)} of '{key}' has another shape or type than its data")
            whole[index] = self._read_entry(stored, key, check)
            covered[index] = True
        if not covered.all():
            raise self.fail(f"the slices of '{key}' overlap and do not cover it")
        return whole


def read_bundle(prefix: Path) -> Bundle:
    """Opens the bundle whose index is ``PREFIX.index``; every entry is checked against the data shards."""
    table = read_table(index_path(prefix))
    if not table or table[0][0] != b"":
        raise damaged(prefix, "the header entry is missing")
    header = _parse(BundleHeaderProto, table[0][1], prefix, "header")
    _check_header(header, prefix)
    entries: dict[str, Message] = {}
    raw_entries: dict[bytes, Message] = {}
    for key, value in table[1:]:
        name = key.decode("utf-8", "surrogateescape")
        entry = _parse(BundleEntryProto, value, prefix, f"entry of '{name}'")
        if key[0] == 0:
            raw_entries[key] = entry
        else:
            entries[name] = entry
    bundle = Bundle(prefix, header, entries, raw_entries)
    _check_entries(bundle)
    return bundle


def index_path(prefix: Path) -> Path:
    """The table file of a bundle."""
    return prefix.with_name(prefix.name + ".index")


def shard_path(prefix: Path, shard: int, shards: int) -> Path:
    """The file of data shard ``shard`` of ``shards``."""
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}")


def key_bytes(key: str) -> bytes:
    """A tensor's name as the index stores it."""
    return key.encode("utf-8", "surrogateescape")


def damaged(prefix: Path, problem: str) -> InputOutputError:
    """The error to raise for damage in the bundle at ``prefix``."""
    return InputOutputError(
        f"the checkpoint '{prefix}' is damaged: {problem}. Copy the model again from where it came from"
    )


def unused_bytes(bundle: Bundle, drop: Iterable[str] = ()) -> int:
    """Bytes of the data shards that no entry would name any more if the tensors in ``drop`` went away."""
    gone = set(drop)
    gone_parts = {id(part) for key in gone if key in bundle.entries for _, part in bundle.parts(key)}
    kept = [entry for key, entry in bundle.entries.items() if key not in gone]
    kept += [entry for entry in bundle.raw_entries.values() if id(entry) not in gone_parts]
    used = 0
    end: dict[int, int] = {}
    for shard, offset, size in sorted((entry.shard_id, entry.offset, entry.size) for entry in kept):
        start = max(offset, end.get(shard, 0))
        used += max(0, offset + size - start)
        end[shard] = max(end.get(shard, 0), offset + size)
    return sum(bundle.shard_sizes().values()) - used


def _parse(message: Message, data: bytes, prefix: Path, what: str) -> Message:
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise damaged(prefix, f"the {what} cannot be parsed") from error


def _check_header(header: Message, prefix: Path) -> None:
    if header.endianness != BundleHeaderProto.LITTLE:
        raise InputOutputError(
            f"the checkpoint '{prefix}' was written on a big-endian machine, which graphfreeze does not read. "
            "Load the model on such a machine and save it on a little-endian one"
        )
    if header.version.min_consumer > 1:
        raise InputOutputError(
            f"the checkpoint '{prefix}' needs a reader of bundle version {header.version.min_consumer}, "
            "this one reads version 1. Upgrade graphfreeze"
        )
    if not 0 < header.num_shards <= _MOST_SHARDS:
        raise damaged(prefix, f"it claims {header.num_shards} data shards, expected 1 to {_MOST_SHARDS}")


def _shape(entry: Message) -> tuple[int, ...]:
    return tuple(dim.size for dim in entry.shape.dim)


def _check_entries(bundle: Bundle) -> None:
    """Every entry lies inside its shard and has the size its shape says; no two share only a part of their bytes."""
    try:
        sizes = bundle.shard_sizes()
    except OSError as error:
        raise InputOutputError(f"cannot read the data of '{bundle.prefix}': {error.strerror}") from error
    named = list(bundle.entries.items())
    named += [(key.decode("utf-8", "backslashreplace"), entry) for key, entry in bundle.raw_entries.items()]
    for name, entry in named:
        _check_shape(bundle, name, entry)
        if not entry.slices:
            _check_place(bundle, name, entry, sizes)
    _check_overlap(bundle, named)


def _check_shape(bundle: Bundle, name: str, entry: Message) -> None:
    shape = _shape(entry)
    if entry.shape.unknown_rank or any(size < 0 for size in shape):
        raise bundle.fail(f"the shape of '{name}' is {list(shape)}, but a stored tensor has known sizes")
    # numpy refuses such arrays even when they are empty.
    if len(shape) > _MOST_AXES or math.prod(size or 1 for size in shape) >= 1 << 58:
        raise bundle.fail(f"the shape of '{name}' is impossibly large: {list(shape)[:8]}")


def _check_place(bundle: Bundle, name: str, entry: Message, sizes: Mapping[int, int]) -> None:
    shards = bundle.header.num_shards
    if not 0 <= entry.shard_id < shards:
        raise bundle.fail(f"'{name}' lies in data shard {entry.shard_id}, but there are {shards}")
    path = bundle.shard_path(entry.shard_id)
    if entry.shard_id not in sizes:
        raise InputOutputError(f"'{path}' is missing: tensor '{name}' lies in it. Copy the whole 'variables' folder")
    end, size = entry.offset + entry.size, sizes[entry.shard_id]
    if entry.offset < 0 or entry.size < 0 or end > size:
        raise bundle.fail(f"'{name}' should lie at bytes {entry.offset} to {end} of '{path.name}', which has {size}")
    elements = math.prod(_shape(entry))
    if base_dtype(entry.dtype) == DT_STRING:
        if entry.size < elements + 4:
            raise bundle.fail(f"'{name}' has {elements} strings in {entry.size} bytes")
    elif (expected := _stored_size(entry, elements)) is not None and entry.size != expected:
        raise bundle.fail(
            f"'{name}' of type {dtype_name(entry.dtype)} and shape {list(_shape(entry))} "
            f"should take {expected} bytes, found {entry.size}"
        )


def _stored_size(entry: Message, elements: int) -> int | None:
    dtype = NUMPY_DTYPES.get(base_dtype(entry.dtype))
    return None if dtype is None else elements * dtype.itemsize


def _check_overlap(bundle: Bundle, named: Iterable[tuple[str, Message]]) -> None:
    """Two entries may name the same bytes (one tensor under two keys), but not a part of each other's."""
    ranges = sorted((e.shard_id, e.offset, e.size, name) for name, e in named if e.size and not e.slices)
    for before, after in itertools.pairwise(ranges):
        same_shard = before[0] == after[0]
        if same_shard and after[1] < before[1] + before[2] and before[1:3] != after[1:3]:
            raise bundle.fail(f"the bytes of '{before[3]}' and '{after[3]}' overlap")
