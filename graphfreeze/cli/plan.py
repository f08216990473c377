"""``graphfreeze plan``."""

from __future__ import annotations

from graphfreeze.cli.options import Model, Output, Planning
from graphfreeze.cli.output import show


def command(
    model: Model,
    options: Planning,
    *,
    output: Output,
) -> None:
    """Show what a rewrite would do, and why."""
    from graphfreeze import api

    show(api.plan(model, **options), output)
