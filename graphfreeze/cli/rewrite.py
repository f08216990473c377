"""``graphfreeze rewrite``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphfreeze.cli.options import (
    Debug,
    Json,
    Model,
    Out,
    Overwrite,
    Planning,
    Quiet,
    Verbose,
    Weights,
    planned,
    refuse_both,
)
from graphfreeze.cli.output import show


@planned
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
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Write the model with elements frozen."""
    refuse_both(quiet, verbose)
    from graphfreeze import api, report

    with report.copy_progress(quiet=quiet) as progress:
        done = api.rewrite(model, out, plan=plan, weights=weights, overwrite=overwrite, progress=progress, **options)
    show(done, json, quiet, verbose, out=out)
