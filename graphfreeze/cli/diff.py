"""``graphfreeze diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphfreeze.cli.options import Output
from graphfreeze.cli.output import tell, write_json

DIFFERENT = 10


def command(
    a: Annotated[Path, typer.Argument(metavar="A", help="Folder of a SavedModel. Exit code 10 if B differs.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Folder of the SavedModel to compare with it.")],
    *,
    output: Output,
) -> None:
    """Compare two models."""
    from graphfreeze import api, report

    found = api.diff(a, b)
    if output.json:
        write_json(found.to_dict())
    else:
        report.write_difference(found, verbose=output.verbose, quiet=output.quiet)
    tell(found.warnings, None)
    if not found.equal:
        raise typer.Exit(DIFFERENT)
