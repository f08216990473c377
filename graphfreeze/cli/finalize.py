"""``graphfreeze finalize``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphfreeze.cli.options import Out, Output, Overwrite, Weights
from graphfreeze.cli.output import tell, write_json


def command(
    trained: Annotated[Path, typer.Argument(metavar="TRAINED", help="Folder of a rewritten, perhaps trained model.")],
    out: Out,
    unfreeze: Annotated[
        list[str],
        typer.Option("--unfreeze", metavar="GLOB", help="Lift only this part of the freeze; may be repeated."),
    ] = [],  # noqa: B006
    weights: Weights = "copy",
    overwrite: Overwrite = False,
    *,
    output: Output,
) -> None:
    """Write the plain, trained model back."""
    from graphfreeze import api, report

    with report.copy_progress(quiet=output.quiet) as progress:
        done = api.finalize(
            trained, out, unfreeze=tuple(unfreeze), overwrite=overwrite, weights=weights, progress=progress
        )
    if output.json:
        where = {"schema": 1, "command": "finalize", "model": str(trained), "out": str(done.out)}
        write_json({**where, "variables": list(done.variables), "warnings": list(done.warnings)})
    elif not output.quiet:
        report.write_restored(done.variables, verbose=output.verbose)
    tell(done.warnings, None if output.quiet else out)
