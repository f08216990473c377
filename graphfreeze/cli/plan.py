"""``graphfreeze plan``."""

from __future__ import annotations

from graphfreeze.cli.options import Debug, Json, Model, Planning, Quiet, Verbose, planned, refuse_both
from graphfreeze.cli.output import show


@planned
def command(
    model: Model,
    options: Planning,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Show what a rewrite would do, and why."""
    refuse_both(quiet, verbose)
    from graphfreeze import api

    show(api.plan(model, **options), json, quiet, verbose)
