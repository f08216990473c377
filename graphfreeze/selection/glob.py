"""Globs over variable names, turned into regular expressions.

Python's fnmatch lets ``*`` cross slashes and knows no braces; names of variables are paths, so both matter here.

    *        any characters but '/'
    **       any characters; as a whole component ('**/', '/**/') also no component at all
    ?        one character but '/'
    {a,b}    either; branches may hold globs, braces too, or be empty
    {0..5}   the numbers 0 to 5; {00..12} keeps two digits

There are no character sets and no escapes: names that hold one of ``*?{}`` are written as ``re:PATTERN``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from graphfreeze.errors import SelectorSyntaxError

MAGIC = re.compile(r"[*?{}]")
RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})\Z")
MAX_RANGE = 100_000
MAX_DEPTH = 20


def is_magic(glob: str) -> bool:
    """Whether the glob can match more than its own text."""
    return MAGIC.search(glob) is not None


def compile_glob(glob: str) -> re.Pattern[str]:
    """The regular expression that matches, as a whole, what the glob matches.

    >>> bool(compile_glob("**/conv_{0..5}/k*").fullmatch("body/conv_3/kernel"))
    True

    Raises:
        SelectorSyntaxError: a brace is not closed, not open, or holds no choice.
    """
    return re.compile(_Translation(glob).whole(), re.DOTALL)


@dataclass(slots=True)
class _Translation:
    """Walks over the glob from left to right; ``at`` is the next character."""

    text: str
    at: int = 0
    depth: int = 0
    """Braces that are open."""

    def whole(self) -> str:
        pattern = self.sequence(inside=False)
        if self.at < len(self.text):
            raise SelectorSyntaxError(self.text, self.at, "'}' closes no '{'")
        return pattern

    def sequence(self, *, inside: bool) -> str:
        """A run of items up to the end, or inside braces up to ',' or '}'."""
        parts: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "}" or (inside and char == ","):
                break
            parts.append(self.item(char))
        return "".join(parts)

    def item(self, char: str) -> str:
        if char == "{":
            return self.braces()
        if char == "*":
            return self.stars()
        self.at += 1
        return "[^/]" if char == "?" else re.escape(char)

    def stars(self) -> str:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] == "*":
            self.at += 1
        if self.at - start == 1:
            return "[^/]*"
        begins = start == 0 or self.text[start - 1] == "/"
        if begins and self.text[self.at : self.at + 1] == "/":
            self.at += 1
            return "(?:.*/)?"
        return ".*"

    def braces(self) -> str:
        opened = self.at
        end = self.text.find("}", opened)
        numbers = RANGE.match(self.text[opened + 1 : end]) if end > 0 else None
        if numbers is not None:
            self.at = end + 1
            return self.numbers(numbers[1], numbers[2], opened)
        if self.depth == MAX_DEPTH:
            raise SelectorSyntaxError(self.text, opened, f"braces are nested more than {MAX_DEPTH} deep")
        self.depth += 1
        branches = [self.branch()]
        while self.at < len(self.text) and self.text[self.at] == ",":
            branches.append(self.branch())
        if self.at == len(self.text):
            raise SelectorSyntaxError(self.text, opened, "'{' is not closed")
        if len(branches) == 1:
            raise SelectorSyntaxError(self.text, opened, "braces hold choices, '{a,b}', or a range, '{0..5}'")
        self.at += 1
        self.depth -= 1
        return f"(?:{'|'.join(branches)})"

    def branch(self) -> str:
        self.at += 1
        return self.sequence(inside=True)

    def numbers(self, first: str, last: str, opened: int) -> str:
        low, high = sorted((int(first), int(last)))
        if high - low >= MAX_RANGE:
            raise SelectorSyntaxError(self.text, opened, f"a range holds at most {MAX_RANGE:,} numbers")
        padded = any(len(text) > 1 and text.startswith("0") for text in (first, last))
        width = max(len(first), len(last)) if padded else 0
        return f"(?:{'|'.join(str(number).zfill(width) for number in range(low, high + 1))})"
