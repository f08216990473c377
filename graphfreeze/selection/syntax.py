"""What a selector says, as values: the abstract syntax that the parser makes and `resolve` reads.

``str()`` of every value is selector text that parses back to an equal value, so plans and spec dumps can show selectors
in one spelling however they were typed. The grammar stands in `graphfreeze.selection.parser`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TypeAlias

from graphfreeze.selection.glob import compile_glob, is_magic


@dataclass(frozen=True, slots=True)
class Glob:
    """Names by wildcards."""

    text: str

    @property
    def is_exact(self) -> bool:
        """Whether it names one name, without wildcards."""
        return not is_magic(self.text)

    def matches(self, name: str) -> bool:
        """Whether the whole name matches. A trailing ':0' of the glob is dropped, as it is from variable names."""
        return _glob_pattern(self.text.removesuffix(":0")).fullmatch(name) is not None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Pattern:
    """Names by a regular expression that must match the whole name."""

    regex: str

    @property
    def is_exact(self) -> bool:
        """A pattern never counts as an exact name."""
        return False

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        return re.fullmatch(self.regex, name) is not None

    def __str__(self) -> str:
        return f"re:{self.regex}"


Target: TypeAlias = Glob | Pattern
"""What a selector names. A further prefix form becomes one more member of this union."""


@dataclass(frozen=True, slots=True)
class At:
    """One index of an axis; negative counts from the end."""

    value: int

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Slice:
    """``start:stop:step`` on an axis; the step is positive."""

    start: int | None = None
    stop: int | None = None
    step: int | None = None

    def __str__(self) -> str:
        start, stop = ("" if bound is None else str(bound) for bound in (self.start, self.stop))
        return f"{start}:{stop}" if self.step is None else f"{start}:{stop}:{self.step}"


@dataclass(frozen=True, slots=True)
class Dots:
    """``...``: as many full axes as are missing."""

    def __str__(self) -> str:
        return "..."


@dataclass(frozen=True, slots=True)
class IndexList:
    """Listed indices of an axis; several lists of one subscript go together element by element, as in numpy."""

    values: tuple[int, ...]

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.values))}]"


Item: TypeAlias = At | Slice | Dots | IndexList


@dataclass(frozen=True, slots=True)
class Subscript:
    """One item per axis, with numpy's meaning."""

    items: tuple[Item, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.items))


@dataclass(frozen=True, slots=True)
class MaskFile:
    """The elements where a stored boolean array is true."""

    path: str
    entry: str | None = None
    """Name of the array in an .npz file; None for .npy."""

    def __str__(self) -> str:
        return f"@{self.path}" if self.entry is None else f"@{self.path}:{self.entry}"


@dataclass(frozen=True, slots=True)
class RowsFile:
    """The rows (indices of axis 0) that a text file lists."""

    path: str

    def __str__(self) -> str:
        return f"@{self.path}"


class Comparison(StrEnum):
    """Operators of a predicate."""

    EQUAL = "=="
    UNEQUAL = "!="
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="


@dataclass(frozen=True, slots=True)
class Predicate:
    """The elements whose stored value, or its magnitude, compares so. NaN never does."""

    comparison: Comparison
    number: float
    absolute: bool = False

    def __str__(self) -> str:
        return f"{'abs ' if self.absolute else ''}{self.comparison} {repr(self.number).removesuffix('.0')}"


Index: TypeAlias = Subscript | MaskFile | RowsFile | Predicate


@dataclass(frozen=True, slots=True)
class Selector:
    """Variables, and the elements of each that are meant; no index means all."""

    target: Target
    index: Index | None = None

    @property
    def reads_file(self) -> bool:
        """Whether the index stands in a file of its own."""
        return isinstance(self.index, MaskFile | RowsFile)

    def __str__(self) -> str:
        if self.index is None:
            return str(self.target)
        return f"{self.target}{'@@' if isinstance(self.target, Pattern) else ''}[{self.index}]"


@lru_cache(maxsize=1024)
def _glob_pattern(glob: str) -> re.Pattern[str]:
    return compile_glob(glob)
