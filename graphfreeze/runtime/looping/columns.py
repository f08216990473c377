"""How arrays that were read fit what a function takes: names, shapes, dtypes and numbers of rows.

Works without TensorFlow. A misfit is the user's, and is said before a step is made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphfreeze.errors import UsageError

Table = dict[str, NDArray[Any]]
Columns = Mapping[str, Sequence[str]]
"""Input name -> the arrays or columns of a file that hold it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One input of a training step, the batch first."""

    name: str
    shape: tuple[int | None, ...] | None
    """None is any shape."""
    dtype: np.dtype[Any]
    """That of objects stands for strings."""

    @property
    def row(self) -> tuple[int | None, ...] | None:
        """The shape of one row."""
        return None if self.shape is None else self.shape[1:]

    @property
    def width(self) -> int | None:
        """Numbers in one row; None where that is not known."""
        if self.row is None or None in self.row:
            return None
        return int(np.prod([s for s in self.row if s is not None], dtype=np.int64))

    def __str__(self) -> str:
        shape = "of any shape" if self.shape is None else shown(self.shape)
        return f"{'string' if self.dtype.kind == 'O' else self.dtype.name} {shape}"


def shown(shape: Sequence[int | None]) -> str:
    """A shape as people write it, ``?`` for any size."""
    sizes = ["?" if s is None else str(s) for s in shape]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def check_columns(columns: Columns, wanted: Sequence[Wanted]) -> None:
    """Refuses a column that is given to an input that is not there.

    Raises:
        UsageError: there is one.
    """
    names = [w.name for w in wanted]
    for name in columns:
        if name not in names:
            raise UsageError(
                f"'{name}' of the columns is no input of the function. {nearest(name, names, 'The inputs are')}"
            )


def nearest(word: str, known: Collection[str], otherwise: str) -> str:
    """Which of the known names was meant, or all of them."""
    near = get_close_matches(word, list(known), 1)
    return (
        f"Did you mean '{near[0]}'?"
        if near
        else f"{otherwise}: " + (", ".join(f"'{n}'" for n in known) or "none") + "."
    )


def missing(key: str, wanted: Wanted, where: str, known: Collection[str], kind: str) -> UsageError:
    """The words for something that the data do not hold."""
    return UsageError(
        f"{where} holds no {kind} '{key}' for the input '{wanted.name}', which takes {wanted}. "
        f"{nearest(key, known, 'It holds')} Name another with --column {wanted.name}=NAME"
    )


def fitted(table: Mapping[str, Any], wanted: Sequence[Wanted], columns: Columns, where: str) -> tuple[Table, list[str]]:
    """Every input as an array of its dtype, and the names of arrays that no input takes.

    Raises:
        UsageError: an array is missing, or has another shape, dtype or number of rows.
    """
    used: set[str] = set()
    found: Table = {}
    for one in wanted:
        keys = list(columns.get(one.name, [one.name]))
        for key in keys:
            if key not in table:
                raise missing(key, one, where, list(table), "array")
        used |= set(keys)
        parts = [np.asarray(table[key]) for key in keys]
        found[one.name] = fit(np.stack(parts, axis=1) if len(parts) > 1 else parts[0], one, where)
    check_rows(found, where)
    return found, [name for name in table if name not in used]


def check_rows(table: Table, where: str) -> None:
    """Refuses data without rows, or with more rows in one array than in another.

    Raises:
        UsageError: that is so.
    """
    rows = {name: len(array) for name, array in table.items()}
    (first, count), *others = rows.items()
    for name, other in others:
        if other != count:
            raise UsageError(
                f"{where} holds rows for {count:,} examples of '{first}' and {other:,} of '{name}'. Give as many"
            )
    if not count:
        raise UsageError(f"{where} holds no rows. Give at least one example")


def fit(array: NDArray[Any], wanted: Wanted, where: str) -> NDArray[Any]:
    """The array in the input's dtype.

    Raises:
        UsageError: its shape or dtype is another, or a number has no place in the dtype.
    """
    if wanted.shape is not None and not _like(array.shape, wanted.shape):
        if array.shape[1:] != () or wanted.width != 1 or not array.ndim:
            raise UsageError(
                f"'{wanted.name}' in {where} has shape {shown(array.shape)}, and the function takes "
                f"{shown(wanted.shape)}. The first axis is that of the examples"
            )
        # One number per example may stand without an axis of its own.
        array = array.reshape(len(array), *(1 for _ in wanted.shape[1:]))
    if not array.ndim:
        raise UsageError(f"'{wanted.name}' in {where} is a single number. The first axis is that of the examples")
    return cast(array, wanted, where)


def cast(array: NDArray[Any], wanted: Wanted, where: str) -> NDArray[Any]:
    """The array in another dtype, where no value changes but by rounding."""
    kind, goal = array.dtype.kind, wanted.dtype.kind
    if goal == "O" and kind in "SUO":
        return np.array([_bytes(v) for v in array.ravel()], dtype=object).reshape(array.shape)
    # ml_dtypes (bfloat16, float8) have the kind V.
    allowed = {"f": "fiub", "V": "fiubV", "c": "cfiub", "i": "iub", "u": "iub", "b": "b"}.get(goal, goal)
    if array.dtype == wanted.dtype:
        return array
    made = array.astype(wanted.dtype) if kind in allowed else None
    if made is None or (goal in "iu" and not np.array_equal(made, array)):
        what = (
            f"of dtype {array.dtype.name}" if made is None else f"of dtype {array.dtype.name} with numbers beyond that"
        )
        raise UsageError(f"'{wanted.name}' in {where} is {what}, and the function takes {wanted}. Convert it first")
    return made


def _like(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    # The batch is cut from the rows, whatever its size.
    return len(shape) == len(wanted) and all(w in (None, s) for s, w in list(zip(shape, wanted, strict=True))[1:])


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
