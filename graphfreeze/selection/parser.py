"""Parses selectors, by recursive descent, with errors that point at the column at fault.

    selector   = glob [ "[" index "]" ]
               | "re:" regex [ "@@[" index "]" ]      (regular expressions use brackets themselves)
    glob       = see graphfreeze.selection.glob
    index      = "@" PATH ".npy" | "@" PATH ".npz:" ARRAY | "@" PATH ".txt"
               | predicate
               | item { "," item } [ "," ]
    item       = "..." | slice | INT | list
    slice      = [ INT ] ":" [ INT ] [ ":" [ INT ] ]  (the step is positive)
    list       = "[" INT { "," INT } [ "," ] "]"
    predicate  = [ "abs" ] ( "==" | "!=" | "<=" | "<" | ">=" | ">" ) NUMBER
    INT        = [ "+" | "-" ] digits
    NUMBER     = [ "+" | "-" ] ( "inf" | decimal, with exponent or without )

The last bracket of a selector is always an index. Spaces may stand around every token of an index.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from graphfreeze.errors import SelectorSyntaxError
from graphfreeze.selection.glob import compile_glob
from graphfreeze.selection.syntax import (
    At,
    Comparison,
    Dots,
    Glob,
    Index,
    IndexList,
    Item,
    MaskFile,
    Pattern,
    Predicate,
    RowsFile,
    Selector,
    Slice,
    Subscript,
    Target,
)

MAX_DIGITS = 18
"""Longer integers could not index a tensor."""
INT = re.compile(r"[+-]?\d+")
NUMBER = re.compile(r"[+-]?(?:inf\b|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
COMPARISON = re.compile(r"==|!=|<=|<|>=|>")
PREDICATE = re.compile(r"abs\b|[=!<>]")
SPACE = re.compile(r"\s*")


def parse_selector(text: str) -> Selector:
    """Parse one selector.

    >>> parse_selector("dense/kernel[:, 64:128]").index
    Subscript(items=(Slice(start=None, stop=None, step=None), Slice(start=64, stop=128, step=None)))
    >>> str(parse_selector("re:.*kernel@@[ abs<1e-3 ]"))
    're:.*kernel@@[abs < 0.001]'

    Raises:
        SelectorSyntaxError: the text is no selector.
    """
    body = text.rstrip()
    begin = len(body) - len(body.lstrip())
    if begin == len(body):
        raise SelectorSyntaxError(text, 0, "a selector is empty; '**' selects every variable")
    if body.startswith("re:", begin):
        opened = body.rfind("@@[") if body.endswith("]") else -1
        target: Target = _pattern(text, begin, body[begin : opened if opened >= 0 else len(body)])
        opened = opened + 2 if opened >= 0 else -1
    else:
        opened = _find_index(text, body)
        target = _glob(text, begin, body[begin : opened if opened >= 0 else len(body)].rstrip())
    return Selector(target, _Index(text, opened + 1, len(body) - 1).parse() if opened >= 0 else None)


def _pattern(text: str, begin: int, written: str) -> Pattern:
    regex = written.removeprefix("re:")
    if not regex:
        raise SelectorSyntaxError(text, begin + 3, "'re:' needs a regular expression")
    try:
        re.compile(regex)
    except re.error as error:
        problem = f"not a regular expression: {error.msg}"
        raise SelectorSyntaxError(text, begin + 3 + (error.pos or 0), problem) from None
    except (OverflowError, RecursionError):
        raise SelectorSyntaxError(text, begin + 3, "the regular expression is too large") from None
    return Pattern(regex)


def _glob(text: str, begin: int, written: str) -> Glob:
    if not written:
        raise SelectorSyntaxError(text, begin, "a selector begins with a name; '**' selects every variable")
    if written.endswith("]"):
        problem = "a selector takes one index; write all axes in one bracket, '[0, 1]'"
        raise SelectorSyntaxError(text, begin + len(written), problem)
    try:
        compile_glob(written)
    except SelectorSyntaxError as error:
        raise SelectorSyntaxError(text, begin + error.column, error.problem) from None
    return Glob(written)


def _find_index(text: str, body: str) -> int:
    """Column of the bracket that opens the index; -1 without one."""
    opened: list[int] = []
    closed = -1
    for column, char in enumerate(body):
        if char == "[":
            opened.append(column)
        elif char == "]":
            if not opened:
                raise SelectorSyntaxError(text, column, "']' closes no '['")
            closed = opened.pop()
    if opened:
        problem = f"expected ']': the bracket opened at column {opened[-1] + 1} is not closed"
        raise SelectorSyntaxError(text, len(body), problem)
    return closed if body.endswith("]") else -1


@dataclass(slots=True)
class _Index:
    """Walks over the text between the brackets; ``at`` is the next column, ``end`` that of the closing bracket."""

    text: str
    at: int
    end: int

    def parse(self) -> Index:
        opened = self.at
        self.space()
        if self.at == self.end:
            raise self.error("an index is empty; leave the brackets out to mean the whole variable")
        if self.accept("@"):
            return self.file()
        if PREDICATE.match(self.text, self.at, self.end):
            return self.predicate()
        return self.subscript(opened)

    def file(self) -> Index:
        start, written = self.at, self.text[self.at : self.end].strip()
        self.at = self.end
        path, npz, entry = written.partition(".npz:")
        if npz and path and entry:
            return MaskFile(f"{path}.npz", entry)
        if written.endswith((".npz", ".npz:")):
            raise self.error("an .npz file holds several arrays; name one: '@masks.npz:NAME'", self.end)
        if written.endswith(".npy") and written != ".npy":
            return MaskFile(written)
        if written.endswith(".txt") and written != ".txt":
            return RowsFile(written)
        raise self.error("expected a mask, '@mask.npy' or '@masks.npz:NAME', or a list of rows, '@rows.txt'", start)

    def predicate(self) -> Predicate:
        absolute = self.accept("abs")
        found = COMPARISON.match(self.text, self.at, self.end)
        if found is None:
            raise self.error("expected one of == != < <= > >=")
        self.advance(found.end())
        number = NUMBER.match(self.text, self.at, self.end)
        if number is None:
            raise self.error("expected a number")
        value = float(number[0])
        if math.isinf(value) and "inf" not in number[0]:
            raise self.error("the number is too large; write inf to mean infinity")
        self.advance(number.end())
        if self.at < self.end:
            raise self.error("expected ']' after the number")
        return Predicate(Comparison(found[0]), value, absolute)

    def subscript(self, opened: int) -> Subscript:
        items = [self.item()]
        while self.comma_or_end(self.end, f"expected ',' or ']' in the index opened at column {opened}"):
            start = self.at
            items.append(self.item())
            if isinstance(items[-1], Dots) and items.count(Dots()) > 1:
                raise self.error("an index can hold '...' only once", start)
        return Subscript(tuple(items))

    def item(self) -> Item:
        if self.accept("..."):
            return Dots()
        column = self.at
        if self.accept("["):
            return self.listed(column + 1)
        start = self.integer()
        if not self.accept(":"):
            if start is None:
                raise self.error("expected an integer, a slice, a list of integers or '...'")
            return At(start)
        stop = self.integer()
        return Slice(start, stop, self.step() if self.accept(":") else None)

    def step(self) -> int | None:
        column, step = self.at, self.integer()
        if step is not None and step < 0:
            raise self.error("a set of elements has no order; write the slice with a positive step", column)
        if step == 0:
            raise self.error("the step of a slice cannot be zero", column)
        return step

    def listed(self, opened: int) -> IndexList:
        close = self.text.find("]", self.at, self.end)
        if self.at == close:
            raise self.error("a list of indices cannot be empty")
        values = [self.listed_integer()]
        while self.comma_or_end(close, f"expected ',' or ']' in the list opened at column {opened}"):
            values.append(self.listed_integer())
        self.advance(close + 1)
        return IndexList(tuple(values))

    def listed_integer(self) -> int:
        value = self.integer()
        if value is None:
            raise self.error("expected an integer")
        return value

    def integer(self) -> int | None:
        found = INT.match(self.text, self.at, self.end)
        if found is None:
            return None
        if len(found[0].lstrip("+-")) > MAX_DIGITS:
            raise self.error("the integer is too large")
        self.advance(found.end())
        return int(found[0])

    def comma_or_end(self, end: int, problem: str) -> bool:
        """Step over a comma; whether something follows it before ``end``."""
        if self.at == end:
            return False
        if not self.accept(","):
            raise self.error(problem)
        return self.at < end

    def accept(self, token: str) -> bool:
        if not self.text.startswith(token, self.at, self.end):
            return False
        self.advance(self.at + len(token))
        return True

    def advance(self, column: int) -> None:
        self.at = column
        self.space()

    def space(self) -> None:
        found = SPACE.match(self.text, self.at, self.end)
        assert found is not None, "the pattern matches the empty text"
        self.at = found.end()

    def error(self, problem: str, column: int | None = None) -> SelectorSyntaxError:
        return SelectorSyntaxError(self.text, self.at if column is None else column, problem)
