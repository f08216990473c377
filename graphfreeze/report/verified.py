"""What a report says of a verification: a table of functions, one of variables, one of training runs, then words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.text import Text

from graphfreeze.report import stream_width, write_lines
from graphfreeze.report.layout import Column, Row, layout, printable, wrapped

if TYPE_CHECKING:
    from graphfreeze.runtime.verifying.results import Finding, Verified

STYLES = {"failed": "bold red", "ok": "green", "not run": "yellow"}
UNREACHABLE = "trainable, but unreachable"

FUNCTION_COLUMNS = (
    Column("forward", "forward: {}", styled=True),
    Column("poison", "poison: {}", styled=True),
    Column("gradients", "gradients: {}", styled=True),
    Column("in tf.function", "in tf.function: {}", styled=True),
)
VARIABLE_COLUMNS = (
    Column("frozen", "frozen: {}", right=True),
    Column("moved by", "moved by: {}", right=True),
    Column("trainable", "trainable: {}", right=True),
    Column("moved", "moved: {}", right=True),
)
TRAINING_COLUMNS = (
    Column("mode", "{}"),
    Column("steps", "steps: {}", right=True),
    Column("frozen", "frozen: {}", right=True),
    Column("moved by", "moved by: {}", right=True),
    Column("trainable", "trainable: {}", right=True),
    Column("moved", "moved: {}", right=True),
)


def write_verified(report: Verified, *, verbose: bool = False, quiet: bool = False) -> None:
    """Writes the report to stdout."""
    write_lines(render_verified(report, width=stream_width(sys.stdout), verbose=verbose, quiet=quiet), sys.stdout)


def render_verified(report: Verified, *, width: int | None, verbose: bool = False, quiet: bool = False) -> list[Text]:
    """The report as lines of at most ``width`` columns. ``quiet`` leaves failures, what was not run, and the result."""
    lines: list[Text] = []
    if not quiet:
        lines += wrapped(f"compared with {_compared(report)}", width)
        for table in (_functions(report, width), _variables(report, width, verbose), _training(report, width)):
            lines += [Text(), *table] if table else []
        lines.append(Text())
    for status in ("not run", "failed"):
        for finding in report.findings:
            if finding.status == status:
                lines += wrapped(_words(finding), width, hanging=2, style=STYLES[status])
    lines += wrapped(_result(report), width, style="bold")
    return lines


@contextmanager
def stage_progress(*, quiet: bool = False) -> Iterator[Callable[[str], None] | None]:
    """Gives a callback that shows on stderr which check runs, or None where nobody would see it."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(file=sys.stderr).status("starting TensorFlow") as status:
        yield lambda stage: status.update(f"verifying: {printable(stage)}")


def _compared(report: Verified) -> str:
    source, rewritten = printable(report.source), printable(report.rewritten)
    if report.trained:
        return f"what finalize makes of '{rewritten}', and frozen values with '{source}'"
    return f"'{source}'"


def _functions(report: Verified, width: int | None) -> list[Text]:
    rows = [
        Row(printable(f.name), (f.forward, f.poison, *f.gradients), style=_style(f.forward, f.poison, *f.gradients))
        for f in report.functions
    ]
    return layout(FUNCTION_COLUMNS, rows, width, name="function") if rows else []


def _variables(report: Verified, width: int | None, verbose: bool) -> list[Text]:
    """Those that hold something frozen or that no gradient reaches; with ``verbose`` the others too."""
    shown = [v for v in report.variables if verbose or v.frozen or v.reached is False]
    rows = [
        Row(
            printable(v.name),
            (
                f"{v.frozen:,}" if v.frozen else "-",
                "-" if v.change is None else f"{v.change:.3g}",
                f"{v.trainable:,}" if v.trainable else "-",
                _share(v.moved, v.trainable),
            ),
            UNREACHABLE if v.reached is False else "",
        )
        for v in shown
    ]
    return layout(VARIABLE_COLUMNS, rows, width, note="note") if rows else []


def _training(report: Verified, width: int | None) -> list[Text]:
    rows = [
        Row(
            t.optimizer,
            (
                "eager" if t.mode == "eager" else "tf.function",
                f"{t.steps:,}",
                f"{t.frozen:,}",
                f"{t.change:.3g}",
                f"{t.trainable:,}",
                _share(t.moved, t.trainable),
            ),
        )
        for t in report.training
    ]
    return layout(TRAINING_COLUMNS, rows, width, name="training with") if rows else []


def _share(moved: int | None, trainable: int) -> str:
    return "-" if moved is None or not trainable else f"{100 * moved / trainable:.1f} %"


def _style(*statuses: str) -> str:
    return next((STYLES[s] for s in ("failed", "not run") if s in statuses), STYLES["ok"])


def _words(finding: Finding) -> str:
    where = f" of '{finding.where}'" if finding.where else ""
    return printable(f"{finding.status}: {finding.check}{where}: {finding.what}")


def _result(report: Verified) -> str:
    failed = len(report.failures)
    left_out = sum(f.status == "not run" for f in report.findings)
    result = "verified" if not failed else f"{failed:,} {'check' if failed == 1 else 'checks'} failed"
    return result + (f"; {left_out:,} not run, for the reasons above" if left_out else "")
