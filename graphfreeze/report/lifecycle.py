"""What a report says of a comparison and of a converted checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from graphfreeze.report.layout import printable, wrapped

if TYPE_CHECKING:
    from graphfreeze.checkpoints.convert import Converted
    from graphfreeze.comparison.difference import Difference, ValueChange

_MOST_SHOWN = 8
_SIGNS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}


def render_difference(
    found: Difference, *, width: int | None, verbose: bool = False, quiet: bool = False
) -> list[Text]:
    """The differences as lines of at most ``width`` columns, the totals last; ``quiet`` leaves only these."""
    lines: list[Text] = []
    if not quiet:
        shown: Counter[str] = Counter()
        subjects = list(dict.fromkeys(change.subject for change in found.changes))
        for change in sorted(found.changes, key=lambda c: subjects.index(c.subject)):
            shown[change.subject] += 1
            if verbose or shown[change.subject] <= _MOST_SHOWN:
                sign, style = _SIGNS[change.what]
                detail = f": {change.detail}" if change.detail else ""
                lines += _line(sign, change.subject, change.name + detail, width, style)
        for subject, count in shown.items():
            if count > _MOST_SHOWN and not verbose:
                more = _count(count - _MOST_SHOWN, f"more {subject}")
                lines += wrapped(f"... and {more}; -v shows all.", width, style="dim")
        for value in found.values:
            lines += _line("~", "value", f"{value.name}: {_moved(value)}", width, "yellow")
        lines += [Text()] if lines else []
    return lines + [line for text in _totals(found) for line in wrapped(text, width, hanging=2)]


def render_converted(done: Converted, *, width: int | None, verbose: bool = False) -> list[Text]:
    """What became of a checkpoint, as lines of at most ``width`` columns."""
    goal = "the rewritten model" if done.direction == "into" else "the original"
    variables, slots = _count(len(done.variables), "frozen variable"), _count(done.slots, "optimizer slot")
    facts = [
        f"converted for {goal}: {variables}, {slots}",
        f"unchanged: {_count(done.unchanged, 'tensor')}",
    ]
    if done.dropped:
        facts.append(f"slots left out, because it does not train any more: {_names(done.dropped, verbose)}")
    if done.added:
        facts.append(f"new slots, because it did not train before: {_names(done.added, verbose)}")
    if verbose:
        facts += [f"frozen: {name}" for name in done.variables]
    return [line for fact in facts for line in wrapped(printable(fact), width, hanging=2)]


def _totals(found: Difference) -> Iterator[str]:
    if found.equal:
        yield "The models are equal."
    else:
        counts = Counter(change.subject for change in found.changes)
        parts = [_count(n, subject) for subject, n in counts.items()]
        parts += [_count(len(found.values), "variable value")] if found.values else []
        yield f"differences: {', '.join(parts)}"
    if found.frozen is not None:
        yield f"frozen elements changed: {found.frozen.changed:,} of {found.frozen.elements:,}"
        for value in found.frozen.variables:
            yield f"  {printable(value.name)}: {_moved(value)}"


def _moved(value: ValueChange) -> str:
    largest = "" if value.largest is None else f", by up to {value.largest:.3g}"
    return f"{value.changed:,} of {value.elements:,} elements{largest}"


def _line(sign: str, subject: str, text: str, width: int | None, style: str) -> list[Text]:
    lines = wrapped(f"{sign} {subject} {printable(text)}", width, hanging=4)
    lines[0].stylize(style, 0, 1)
    return lines


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def _names(names: tuple[str, ...], verbose: bool) -> str:
    shown = names if verbose else names[:_MOST_SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(f"'{name}'" for name in shown) + more
