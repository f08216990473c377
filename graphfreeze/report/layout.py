"""Rows of facts as lines of text that fit a width; knows nothing of plans.

The same rows come in four layouts, and the first that fits is taken, so that nothing is ever cut and no cell wraps into
a ragged column:

1. one line per row, the note as last column (also in a pipe, where lines may be as long as they need)
2. one line per row, the note under it
3. the name on a line of its own, the columns under it, then the note
4. no columns: the name, then its facts, wrapped between two facts

2 and 3 are tried with all columns, then with fewer; facts that lost their column get a line before the note.

Names come from the model, which nobody vouches for: control characters are shown escaped, never sent to the terminal.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.text import Text

GAP = "  "
NAME = "variable"
NOTE = "reason"
NARROWEST = 2
"""The highest ``drop`` that a column may have."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, and how its value reads in a line of facts."""

    header: str
    fact: str = "{}"
    right: bool = False
    styled: bool = False
    """Takes the style of its row."""
    drop: int = 0
    """When the screen is too narrow: the columns with 1 go first, those with 0 stay."""


@dataclass(frozen=True, slots=True)
class Row:
    """One named thing. ``facts`` are cells without a column, ``details`` further lines under the row."""

    name: str
    cells: tuple[str, ...]
    note: str = ""
    facts: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    style: str = ""


def layout(
    columns: Sequence[Column], rows: Sequence[Row], width: int | None, *, name: str = NAME, note: str = NOTE
) -> list[Text]:
    """The rows as lines of at most ``width`` columns, or of any length where it is None.

    ``name`` and ``note`` are the headers of the first and the last column.
    """
    room = sys.maxsize if width is None else width
    heads = (name, note)
    names = max(cell_len(name), *(cell_len(row.name) for row in rows))
    notes = max(cell_len(note), *(cell_len(row.note) for row in rows)) if any(row.note for row in rows) else 0
    for drop in range(NARROWEST + 1):
        kept = [i for i, c in enumerate(columns) if c.drop == 0 or c.drop > drop]
        fewer = [columns[i] for i in kept]
        shorter = rows if len(kept) == len(columns) else [_without(columns, row, kept) for row in rows]
        widths = [max(cell_len(c.header), *(cell_len(r.cells[i]) for r in shorter)) for i, c in enumerate(fewer)]
        facts = sum(widths) + len(GAP) * (len(widths) - 1)
        if notes and not drop and names + facts + notes + 2 * len(GAP) <= room:
            return _table(fewer, shorter, widths, width, heads, name=names, note=notes)
        if names + len(GAP) + facts <= room:
            return _table(fewer, shorter, widths, width, heads, name=names)
        if len(GAP) + facts <= room:
            return _table(fewer, shorter, widths, width, heads)
    return _blocks(columns, rows, width)


def wrapped(
    text: str,
    width: int | None,
    *,
    indent: int = 0,
    hanging: int = 0,
    style: str = "",
    pieces: Sequence[str] | None = None,
) -> list[Text]:
    """The text in lines of at most ``width``, broken between words, then after a slash, then anywhere; never cut."""
    if width is None:
        return [Text(" " * indent + text, style)]
    lines, line, free = [], " " * indent, width - indent
    for piece in pieces or re.findall(r"\S+\s*|\s+", text):
        for part in _broken(piece, max(width - indent - hanging, 8)):
            if cell_len(part.rstrip()) > free and line.strip():
                lines.append(line.rstrip())
                line, free = " " * (indent + hanging), width - indent - hanging
            line += part
            free -= cell_len(part)
    lines.append(line.rstrip())
    return [Text(line, style) for line in lines]


def printable(text: str) -> str:
    """The text with everything that is not printable escaped, so that a name cannot steer the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def _without(columns: Sequence[Column], row: Row, kept: Sequence[int]) -> Row:
    """The row with only some cells; the others become facts."""
    lost = tuple(c.fact.format(row.cells[i]) for i, c in enumerate(columns) if i not in kept)
    return replace(row, cells=tuple(row.cells[i] for i in kept), facts=lost)


def _table(
    columns: Sequence[Column],
    rows: Sequence[Row],
    widths: Sequence[int],
    width: int | None,
    heads: tuple[str, str],
    *,
    name: int = 0,
    note: int = 0,
) -> list[Text]:
    """Layouts 1 to 3: without ``name`` the name gets a line of its own, without ``note`` the note does."""
    start = [Text(_pad(heads[0], name), "bold")] if name else [Text()]
    end = [Text(heads[1], "bold")] if note else []
    rules = ["-" * n for n in (name, *widths, *[note] * bool(note))]
    lines = [] if name else [Text(heads[0], "bold")]
    lines.append(_join([*start, _cells(columns, [c.header for c in columns], widths, header=True), *end]))
    lines.append(Text(GAP.join(rules), "dim"))
    for row in rows:
        if not name:
            lines += wrapped(row.name, width, hanging=4, style="bold")
        start = [Text(_pad(row.name, name))] if name else [Text()]
        end = [Text(row.note)] if note else []
        lines.append(_join([*start, _cells(columns, row.cells, widths, row.style), *end]))
        lines += _under(row, width, note=not note)
    return lines


def _blocks(columns: Sequence[Column], rows: Sequence[Row], width: int | None) -> list[Text]:
    """Layout 4."""
    lines: list[Text] = []
    for row in rows:
        lines += wrapped(row.name, width, hanging=4, style="bold")
        facts = tuple(c.fact.format(cell) for c, cell in zip(columns, row.cells, strict=True) if cell != "-")
        lines += _under(replace(row, facts=facts), width, note=True)
    return lines


def _under(row: Row, width: int | None, *, note: bool) -> list[Text]:
    pieces = [f"{fact}, " for fact in row.facts[:-1]] + list(row.facts[-1:])
    lines = wrapped("".join(pieces), width, indent=2, style="dim", pieces=pieces) if pieces else []
    lines += wrapped(row.note, width, indent=2, style="dim") if note and row.note else []
    for detail in row.details:
        lines += wrapped(detail, width, indent=4, hanging=2, style="dim")
    return lines


def _cells(
    columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int], style: str = "", *, header: bool = False
) -> Text:
    parts = []
    for column, cell, width in zip(columns, cells, widths, strict=True):
        parts.append(Text(_pad(cell, width, right=column.right), "bold" if header else style if column.styled else ""))
    return Text(GAP).join(parts)


def _pad(text: str, width: int, *, right: bool = False) -> str:
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def _join(parts: Iterable[Text]) -> Text:
    line = Text(GAP).join(parts)
    line.rstrip()
    return line


def _broken(piece: str, width: int) -> Iterator[str]:
    """A piece that is wider than a line, in parts that fit."""
    if cell_len(piece.rstrip()) <= width:
        yield piece
        return
    for part in re.findall(r"[^/]*/|[^/]+", piece):
        line = ""
        for character in part:
            if cell_len(line + character) > width:
                yield line
                line = ""
            line += character
        yield line
