"""``graphfreeze inspect``."""

from __future__ import annotations

from graphfreeze.cli.options import Debug, Json, Model, Quiet, Tags, Verbose, refuse_both, split_tags
from graphfreeze.cli.output import show


def command(
    model: Model,
    tags: Tags = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """List the variables and their uses."""
    refuse_both(quiet, verbose)
    from graphfreeze import api

    show(api.inspect(model, tags=split_tags(tags)), json, quiet, verbose)
