"""Shows plans and messages to people; the only place that knows how output looks.

What draws with rich is imported where something is shown: a quiet command that goes well shows nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.text import Text

    from graphfreeze.checkpoints.convert import Converted
    from graphfreeze.comparison.difference import Difference
    from graphfreeze.passes.phase_view import Phases
    from graphfreeze.planning.plan import Plan
    from graphfreeze.runtime.steps.result import Steps

__all__ = [
    "copy_progress",
    "render_message",
    "stream_width",
    "write_converted",
    "write_difference",
    "write_lines",
    "write_message",
    "write_phases",
    "write_plan",
    "write_restored",
    "write_steps",
]


def write_plan(plan: Plan, *, verbose: bool = False, quiet: bool = False) -> None:
    """Writes the report of a plan to stdout."""
    from graphfreeze.report.plans import render_plan

    write_lines(render_plan(plan, width=stream_width(sys.stdout), verbose=verbose, quiet=quiet), sys.stdout)


def write_phases(found: Phases, *, verbose: bool = False, quiet: bool = False) -> None:
    """Writes the phases of a model to stdout."""
    from graphfreeze.report.phases import render_phases

    write_lines(render_phases(found, width=stream_width(sys.stdout), verbose=verbose, quiet=quiet), sys.stdout)


def write_restored(names: Sequence[str], *, verbose: bool = False) -> None:
    """Writes to stdout which variables ``finalize`` restored; their names only with ``verbose``."""
    from graphfreeze.report.layout import printable, wrapped

    width = stream_width(sys.stdout)
    count = "1 variable" if len(names) == 1 else f"{len(names):,} variables"
    lines = wrapped(f"restored {count}{':' if verbose and names else ''}", width, style="bold")
    for name in names if verbose else ():
        lines += wrapped(printable(name), width, indent=2, hanging=2)
    write_lines(lines, sys.stdout)


def write_difference(found: Difference, *, verbose: bool = False, quiet: bool = False) -> None:
    """Writes to stdout what differs between two models."""
    from graphfreeze.report.lifecycle import render_difference

    write_lines(render_difference(found, width=stream_width(sys.stdout), verbose=verbose, quiet=quiet), sys.stdout)


def write_converted(done: Converted, *, verbose: bool = False) -> None:
    """Writes to stdout what became of a checkpoint."""
    from graphfreeze.report.lifecycle import render_converted

    write_lines(render_converted(done, width=stream_width(sys.stdout), verbose=verbose), sys.stdout)


def write_steps(done: Steps, *, verbose: bool = False) -> None:
    """Writes to stdout which training steps were put into a model."""
    from graphfreeze.report.steps import render_steps

    write_lines(render_steps(done, width=stream_width(sys.stdout), verbose=verbose), sys.stdout)


def write_message(label: str, message: str, *, style: str = "") -> None:
    """Writes ``label: message`` to stderr. A line that begins with a space (a caret) stays as it is."""
    write_lines(render_message(label, message, width=stream_width(sys.stderr), style=style), sys.stderr)


def render_message(label: str, message: str, *, width: int | None, style: str = "") -> list[Text]:
    """``label: message`` as lines of at most ``width`` columns."""
    from graphfreeze.report.layout import printable, wrapped

    lines: list[Text] = []
    for number, line in enumerate(message.splitlines() or [""]):
        text = f"{label}: {printable(line)}" if number == 0 and label else printable(line)
        lines += wrapped(text, None if line.startswith(" ") else width)
    if label and style:
        lines[0].stylize(style, 0, len(label) + 1)
    return lines


def write_lines(lines: Iterable[Text], stream: TextIO) -> None:
    """Writes lines as they are, with colours only where the stream is a terminal and ``NO_COLOR`` is unset."""
    from rich.console import Console

    console = Console(
        file=stream,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
    )
    # Captured, because rich turns a closed pipe into an exit code of its own.
    with console.capture() as capture:
        for line in lines:
            console.print(line)
    stream.write(capture.get())
    stream.flush()


@contextmanager
def copy_progress(*, quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """Gives a callback that draws a bar on stderr from its first call on, or None where nobody would see it."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    progress = Progress(
        TextColumn("copying weights"),
        BarColumn(bar_width=None),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(compact=True),
        console=Console(file=sys.stderr, color_system=None if os.environ.get("NO_COLOR") else "auto"),
        transient=True,
        expand=True,
    )
    task = progress.add_task("copy", total=None)

    def advance(done: int, total: int) -> None:
        progress.start()
        progress.update(task, completed=done, total=total)

    try:
        yield advance
    finally:
        progress.stop()


def stream_width(stream: TextIO) -> int | None:
    """Columns of a terminal, or None (no limit) for a pipe or a file. A ``COLUMNS`` that is set wins."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None
