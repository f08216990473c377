"""``graphfreeze phases``."""

from __future__ import annotations

from graphfreeze.cli.options import Model, Output
from graphfreeze.cli.output import write_json


def command(
    model: Model,
    *,
    output: Output,
) -> None:
    """List the phases of a rewritten model."""
    from graphfreeze import api, report

    found = api.phases(model)
    if output.json:
        write_json(found.to_dict())
    else:
        report.write_phases(found, verbose=output.verbose, quiet=output.quiet)
