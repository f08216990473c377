"""``graphfreeze checkpoint``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from graphfreeze.cli.options import Output, Overwrite
from graphfreeze.cli.output import tell, write_json


def command(
    prefix: Annotated[Path, typer.Argument(metavar="PREFIX", help="Checkpoint to read: DIR/NAME for DIR/NAME.index.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="NEW_PREFIX", help="Checkpoint to write.")],
    into: Annotated[
        Path | None, typer.Option("--into", metavar="REWRITTEN", help="PREFIX is of the original of this model.")
    ] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="REWRITTEN", help="PREFIX is of this model; undo the conversion.")
    ] = None,
    frozen: Annotated[
        Literal["checkpoint", "model"],
        typer.Option("--frozen", help="With --into: where frozen elements take their values from."),
    ] = "checkpoint",
    at: Annotated[
        str | None, typer.Option("--at", metavar="PATH", help="Where the model stands in the checkpoint, if twice.")
    ] = None,
    overwrite: Overwrite = False,
    *,
    output: Output,
) -> None:
    """Convert a training checkpoint."""
    if (into is None) == (from_ is None):
        raise typer.BadParameter("give one of --into REWRITTEN and --from REWRITTEN", param_hint="--into")
    from graphfreeze import api, report

    with report.copy_progress(quiet=output.quiet) as progress:
        done = api.checkpoint(
            prefix, out, into=into, from_=from_, frozen=frozen, at=at, overwrite=overwrite, progress=progress
        )
    if output.json:
        write_json(done.to_dict())
    elif not output.quiet:
        report.write_converted(done, verbose=output.verbose)
    tell(done.warnings, None if output.quiet else out)
