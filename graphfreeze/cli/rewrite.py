"""``graphfreeze rewrite``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphfreeze.cli.options import Model, Out, Output, Overwrite, Planning, Weights
from graphfreeze.cli.output import show


def command(
    model: Model,
    out: Out,
    options: Planning,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="Execute a plan that 'graphfreeze plan --json' printed."),
    ] = None,
    weights: Weights = "copy",
    overwrite: Overwrite = False,
    *,
    output: Output,
) -> None:
    """Write the model with elements frozen."""
    from graphfreeze import api, report

    with report.copy_progress(quiet=output.quiet) as progress:
        done = api.rewrite(model, out, plan=plan, weights=weights, overwrite=overwrite, progress=progress, **options)
    show(done, output, out=out)
