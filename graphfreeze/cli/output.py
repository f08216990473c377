"""What a command says: data on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphfreeze.cli.options import Output
    from graphfreeze.planning.plan import Plan


def show(plan: Plan, output: Output, *, out: Path | None = None) -> None:
    """Data to stdout, the rest to stderr. A quiet command that wrote something has no data to show."""
    from graphfreeze import report

    if output.json:
        write_json(plan.to_dict())
    elif out is None or not output.quiet:
        report.write_plan(plan, verbose=output.verbose, quiet=output.quiet)
    tell(plan.warnings, None if output.quiet else out)


def write_json(data: dict[str, Any]) -> None:
    """JSON to stdout."""
    from json import dumps

    sys.stdout.write(dumps(data, indent=2) + "\n")
    sys.stdout.flush()


def tell(warnings: tuple[str, ...], out: Path | None) -> None:
    """Warnings to stderr, and where something was written."""
    from graphfreeze import report

    for warning in warnings:
        report.write_message("warning", warning, style="yellow")
    if out is not None:
        report.write_message("", f"wrote {out}")
