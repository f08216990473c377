"""Data files: ``.npz`` (arrays by name), ``.csv`` (columns by header) and ``.tfrecord`` (``tf.Example`` by feature).

Whole files are held in memory; what does not fit there comes as a ``tf.data.Dataset`` from Python.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphfreeze.errors import InputOutputError, UsageError
from graphfreeze.runtime.looping.columns import Columns, Table, Wanted, cast, check_rows, fit, fitted, missing, shown
from graphfreeze.runtime.verifying.inputs import read_samples

Read = tuple[Table, list[str]]
"""Inputs by name, and the names of what no input takes."""
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def read_data(path: Path, wanted: Sequence[Wanted], columns: Columns) -> Read:
    """The inputs of a step, from a file.

    Raises:
        InputOutputError: the file is missing or damaged.
        UsageError: it is of another kind, or does not fit what the function takes.
    """
    kinds: Mapping[str, Callable[[Path, Sequence[Wanted], Columns], Read]] = {
        ".npz": _npz,
        ".csv": _csv,
        ".tfrecord": _records,
        ".tfrecords": _records,
    }
    if path.suffix.lower() not in kinds:
        raise UsageError(f"'{path}' is no data file that is known by its name. Give a .npz, .csv or .tfrecord file")
    if not path.is_file():
        raise InputOutputError(f"Cannot read '{path}': {'Is a directory' if path.is_dir() else 'No such file'}")
    return kinds[path.suffix.lower()](path, wanted, columns)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputOutputError(f"Cannot read '{path}': {error.strerror or error}") from error


def _npz(path: Path, wanted: Sequence[Wanted], columns: Columns) -> Read:
    return fitted(read_samples(path), wanted, columns, f"'{path}'")


def _csv(path: Path, wanted: Sequence[Wanted], columns: Columns) -> Read:
    where = f"'{path}'"
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
    except OSError as error:
        raise InputOutputError(f"Cannot read {where}: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputOutputError(f"{where} is no table of comma-separated text ({error}). Save it as UTF-8") from error
    if not rows:
        raise InputOutputError(f"{where} is empty. Its first line has to name the columns")
    header = [name.strip() for name in rows[0]]
    twice = [name for i, name in enumerate(header) if name in header[:i]]
    if twice:
        raise UsageError(f"{where} names the column '{twice[0]}' twice. Give each a name of its own")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(header):
            raise UsageError(f"Row {number} of {where} has {len(row)} fields, and the header {len(header)}. Correct it")
    cells = {name: [row[i].strip() for row in rows[1:]] for i, name in enumerate(header)}
    found, used = {}, set[str]()
    for one in wanted:
        keys = _header_of(one, columns, header, where)
        used |= set(keys)
        flat = np.stack([_numbers(cells[k], one, k, where) for k in keys], axis=1)
        found[one.name] = _rows(flat, one, where, f"{len(keys)} column{'s' * (len(keys) > 1)}")
    check_rows(found, where)
    return found, [name for name in header if name not in used]


def _header_of(wanted: Wanted, columns: Columns, header: Sequence[str], where: str) -> list[str]:
    """The columns of an input: those that were given, its own, or ``NAME_0``, ``NAME_1``, ..."""
    if wanted.name in columns:
        keys = list(columns[wanted.name])
    elif wanted.name in header or wanted.width == 1:
        keys = [wanted.name]
    elif wanted.width is not None:
        keys = [f"{wanted.name}_{i}" for i in range(wanted.width)]
    else:
        count = 0
        while f"{wanted.name}_{count}" in header:
            count += 1
        keys = [f"{wanted.name}_{i}" for i in range(max(count, 1))]
    for key in keys:
        if key not in header:
            raise missing(key, wanted, where, header, "column")
    return keys


def _numbers(texts: Sequence[str], wanted: Wanted, key: str, where: str) -> NDArray[Any]:
    if wanted.dtype.kind == "O":
        return np.array([t.encode() for t in texts], dtype=object)
    kinds: Mapping[str, Callable[[str], Any]] = {"i": int, "u": int, "b": _boolean, "c": complex}
    kind = kinds.get(wanted.dtype.kind, float)
    values = []
    for number, text in enumerate(texts, 2):
        try:
            values.append(kind(text))
        except ValueError:
            raise UsageError(
                f"Row {number} of {where} holds '{text}' in column '{key}', which is no {wanted.dtype.name} for the "
                f"input '{wanted.name}'. Correct it"
            ) from None
    return cast(np.array(values, dtype=None if values else wanted.dtype), wanted, where)


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError(text)
    return _BOOLEANS[text.lower()]


def _rows(flat: NDArray[Any], wanted: Wanted, where: str, found: str) -> NDArray[Any]:
    """Rows of numbers, one after the other, in the shape of the input."""
    row = wanted.row
    unknown = 0 if row is None else row.count(None)
    if row is None or unknown > 1:
        return fit(flat, wanted, where)
    known = int(np.prod([s for s in row if s is not None], dtype=np.int64))
    if (unknown and known and flat.shape[1] % known) or (not unknown and flat.shape[1] != known):
        raise UsageError(
            f"The input '{wanted.name}' has {found} in {where}, and one example is {shown(row)}. Name as many as it "
            f"takes: --column {wanted.name}=NAME,NAME,..."
        )
    sizes = [flat.shape[1] // max(known, 1) if s is None else s for s in row]
    return flat.reshape(len(flat), *sizes)


def _records(path: Path, wanted: Sequence[Wanted], columns: Columns) -> Read:
    where = f"'{path}'"
    examples = _examples(path)
    names: dict[str, None] = {name: None for example in examples for name in example}
    if not examples:
        raise UsageError(f"{where} holds no rows. Give at least one example")
    found, used = {}, set[str]()
    for one in wanted:
        keys = list(columns.get(one.name, [one.name]))
        used |= set(keys)
        for key in keys:
            if key not in names:
                raise missing(key, one, where, list(names), "feature")
        rows = [[v for key in keys for v in _values(example, key, i, where)] for i, example in enumerate(examples)]
        lengths = {len(row) for row in rows}
        if len(lengths) > 1:
            raise UsageError(
                f"The feature '{keys[0]}' of {where} has between {min(lengths)} and {max(lengths)} values. Give all "
                "examples one shape"
            )
        flat = np.array(rows, dtype=object if isinstance(rows[0][:1], list) and _is_text(rows[0]) else None)
        count = flat.shape[1]
        found[one.name] = _rows(cast(flat, one, where), one, where, f"{count} value{'s' * (count != 1)}")
    return found, [name for name in names if name not in used]


def _is_text(row: Sequence[Any]) -> bool:
    return bool(row) and isinstance(row[0], bytes)


def _values(example: Mapping[str, Any], key: str, number: int, where: str) -> Sequence[Any]:
    if key not in example:
        raise UsageError(f"Example {number} of {where} has no feature '{key}', others have. Give it to all")
    values: Sequence[Any] = example[key]
    return values


def _examples(path: Path) -> list[dict[str, Sequence[Any]]]:
    """The features of every example, by name."""
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    found = []
    try:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            features = tf.train.Example.FromString(record).features.feature
            found.append({name: _list(feature) for name, feature in features.items()})
    except (tf.errors.OpError, DecodeError) as error:
        what = "is damaged" if isinstance(error, tf.errors.DataLossError) else "holds no tf.Example protos"
        raise InputOutputError(
            f"'{path}' {what}, in record {len(found)}. Write it with: tf.io.TFRecordWriter"
        ) from error
    return found


def _list(feature: Any) -> Sequence[Any]:
    kind = feature.WhichOneof("kind")
    # A float list holds 32 bits: as that dtype it goes into integers no more than into strings.
    if kind == "float_list":
        return list(np.array(feature.float_list.value, np.float32))
    return list(getattr(feature, kind).value) if kind else []
