"""Reads the files that a selector can name: boolean masks and lists of row numbers.

A glob may apply one file to many variables, so each is read once per resolution. Pickled arrays are never loaded: a
mask can come from anyone, and unpickling runs code.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from graphfreeze.errors import InputOutputError
from graphfreeze.selection.region import AnyArray

NumberedRows = tuple[tuple[int, int | None], ...]
"""Line number and row number; None where the line holds no integer."""


@dataclass(slots=True)
class FileCache:
    """Files read so far."""

    masks: dict[tuple[Path, str | None], AnyArray] = field(default_factory=dict)
    lists: dict[Path, NumberedRows] = field(default_factory=dict)

    def mask(self, path: Path, entry: str | None) -> AnyArray:
        """The array in an .npy file, or an entry of an .npz file.

        Raises:
            InputOutputError: the file is missing or damaged, or has no such entry.
        """
        if (path, entry) not in self.masks:
            self.masks[path, entry] = _read_npy(path) if entry is None else _read_npz(path, entry)
        return self.masks[path, entry]

    def rows(self, path: Path) -> NumberedRows:
        """The row numbers in a text file: one per line; '#' begins a comment.

        Raises:
            InputOutputError: the file is missing, or is no text.
        """
        if path not in self.lists:
            self.lists[path] = _read_rows(path)
        return self.lists[path]


def _read_npy(path: Path) -> AnyArray:
    with _reading(path, "mask"):
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        loaded.close()
        raise InputOutputError(f"Cannot read mask '{path}': it is an .npz archive, not a single array.")


def _read_npz(path: Path, entry: str) -> AnyArray:
    with _reading(path, "masks"):
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise InputOutputError(f"Cannot read masks '{path}': it is a single array, not an .npz archive.")
        with loaded as archive:
            if entry not in archive.files:
                names = ", ".join(f"'{name}'" for name in archive.files) or "none"
                raise InputOutputError(f"'{path}' has no array '{entry}'. Arrays in it: {names}.")
            return np.asarray(archive[entry])


def _read_rows(path: Path) -> NumberedRows:
    with _reading(path, "rows"):
        lines = path.read_text(encoding="utf-8").splitlines()
    contents = ((number, line.partition("#")[0].strip()) for number, line in enumerate(lines, start=1))
    return tuple((number, _integer(text)) for number, text in contents if text)


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """Report everything that can be wrong with a file in one form."""
    try:
        yield
    except OSError as error:
        raise InputOutputError(f"Cannot read {what} '{path}': {error.strerror or error}.") from None
    except (ValueError, EOFError, MemoryError, OverflowError, zipfile.BadZipFile, zlib.error) as error:
        raise InputOutputError(f"Cannot read {what} '{path}': {error}.") from None
