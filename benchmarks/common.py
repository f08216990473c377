"""What both benchmarks share: interleaved rounds, paired ratios, a plain table, JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Rounds = dict[str, list[float]]
"""Seconds by variant, one number per round."""


def interleave(variants: Mapping[str, Callable[[], float]], rounds: int) -> Rounds:
    """Runs every variant once per round, each round starting with another one; a variant returns its seconds."""
    names = list(variants)
    seconds: Rounds = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            seconds[name].append(variants[name]())
    return seconds


def ratio(seconds: Rounds, name: str, peer: str) -> float:
    """Median over the rounds of a variant's time by its peer's in the same round: drift of the machine cancels."""
    return statistics.median(a / b for a, b in zip(seconds[name], seconds[peer], strict=True))


def spread(seconds: Rounds, name: str, peer: str) -> tuple[float, float]:
    """The quartiles of the same ratios."""
    ratios = [a / b for a, b in zip(seconds[name], seconds[peer], strict=True)]
    if len(ratios) < 2:
        return ratios[0], ratios[0]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, high


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their longest cell; the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    print(f"\n{title}")
    for row in (header, ["-" * width for width in widths], *rows):
        cells = [
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip(), flush=True)


def write_json(path: Path, data: object) -> None:
    """Writes the figures for another program."""
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
