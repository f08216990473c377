"""What a report says of a training run: a table of epochs, and a bar while it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.text import Text

from graphfreeze.report import stream_width, write_lines
from graphfreeze.report.layout import Column, Row, layout, printable, wrapped

if TYPE_CHECKING:
    from graphfreeze.runtime.looping.result import Tick, Trained

NARROW = 60
"""Columns below which the bar leaves out the time."""


def write_trained(done: Trained, *, verbose: bool = False) -> None:
    """Writes the report to stdout."""
    write_lines(render_trained(done, width=stream_width(sys.stdout), verbose=verbose), sys.stdout)


def render_trained(done: Trained, *, width: int | None, verbose: bool = False) -> list[Text]:
    """The report as lines of at most ``width`` columns."""
    metrics = sorted({name for epoch in done.epochs for name in epoch.metrics})
    columns = [Column("epoch", "epoch: {}", right=True), Column("steps", "steps: {}", right=True, drop=1)]
    columns += [
        Column("loss", "loss: {}", right=True),
        *(Column(_words(m), f"{_words(m)}: {{}}", right=True) for m in metrics),
    ]
    rows = [
        Row(
            printable(e.phase or "all"),
            (f"{e.number:,}", f"{e.steps:,}", f"{e.loss:.6g}", *(_number(e.metrics.get(m)) for m in metrics)),
        )
        for e in done.epochs
    ]
    lines = layout(columns, rows, width, name="phase") if rows else []
    lines.append(Text())
    for phase, variables in done.trained.items():
        count = "1 variable" if len(variables) == 1 else f"{len(variables):,} variables"
        what = f"phase {printable(phase)} trains" if phase else "trained"
        lines += wrapped(f"{what} {count}{':' if verbose else ''}", width)
        for name in variables if verbose else ():
            lines += wrapped(printable(name), width, indent=2, hanging=2)
    lines += wrapped(f"optimizer state: {done.state_bytes:,} bytes", width)
    resumed = "" if done.resumed_from is None else f", resumed after step {done.resumed_from:,}"
    lines += wrapped(f"{done.steps:,} steps{resumed}", width, style="bold")
    return lines


@contextmanager
def train_progress(*, quiet: bool = False) -> Iterator[Callable[[Tick], None] | None]:
    """Gives a callback that draws a bar on stderr, or None where nobody would see it."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=sys.stderr, color_system=None if os.environ.get("NO_COLOR") else "auto")
    time = [TimeRemainingColumn(compact=True)] if console.width >= NARROW else []
    text = TextColumn("{task.description}", markup=False)
    loss = TextColumn("{task.fields[loss]}", markup=False)
    with Progress(text, BarColumn(bar_width=None), loss, *time, console=console, transient=True, expand=True) as bar:
        task = bar.add_task("loading", total=None, loss="")

        def advance(tick: Tick) -> None:
            phase = f"{printable(tick.phase)} " if tick.phase else ""
            words = f"{phase}epoch {tick.epoch}/{tick.epochs}"
            bar.update(task, description=words, completed=tick.batch, total=tick.batches, loss=f"loss {tick.loss:.4g}")

        yield advance


def _words(metric: str) -> str:
    return metric.replace("_", " ")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
