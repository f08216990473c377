"""``graphfreeze phases``."""

from __future__ import annotations

from graphfreeze.cli.options import Debug, Json, Model, Quiet, Verbose, refuse_both
from graphfreeze.cli.output import write_json


def command(
    model: Model,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """List the phases of a rewritten model."""
    refuse_both(quiet, verbose)
    from graphfreeze import api, report

    found = api.phases(model)
    if json:
        write_json(found.to_dict())
    else:
        report.write_phases(found, verbose=verbose, quiet=quiet)
