"""``graphfreeze verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphfreeze.cli.options import Output
from graphfreeze.cli.output import tell, write_json

if TYPE_CHECKING:
    from graphfreeze.runtime.verifying.results import Verified


def command(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Folder of the model that was rewritten.")],
    rewritten: Annotated[Path, typer.Argument(metavar="REWRITTEN", help="Folder of the result, trained or not.")],
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Steps of each training run.")] = 20,
    optimizer: Annotated[
        str,
        typer.Option(
            "--optimizer",
            metavar="NAME",
            help="Any optimizer of Keras, or 'all': momentum, sparse momentum, decay, clipping and averaging.",
        ),
    ] = "adamw",
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed of inputs and new values.")] = 0,
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--inputs", metavar="FILE", help="Samples (.npz) by input name or NAME@signature; the rest is made up."
        ),
    ] = None,
    *,
    output: Output,
) -> None:
    """Check a result by running it."""
    from graphfreeze import api
    from graphfreeze.errors import VerificationError
    from graphfreeze.report.verified import stage_progress

    try:
        with stage_progress(quiet=output.quiet or output.json) as progress:
            report = api.verify(
                source, rewritten, steps=steps, optimizer=optimizer, seed=seed, inputs=inputs, progress=progress
            )
    except VerificationError as error:
        if error.report is not None:
            _show(error.report, output)
        raise
    _show(report, output)


def _show(report: Verified, output: Output) -> None:
    from graphfreeze.report.verified import write_verified

    if output.json:
        write_json(report.to_dict())
    else:
        write_verified(report, verbose=output.verbose, quiet=output.quiet)
    tell(report.warnings, None)
