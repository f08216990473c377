"""``graphfreeze inspect``."""

from __future__ import annotations

from typing import Annotated

import typer

from graphfreeze.cli.options import Model, Output, Tags, split_tags
from graphfreeze.cli.output import show


def command(
    model: Model,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also ask TensorFlow, which this starts, for ops without a gradient.")
    ] = False,
    tags: Tags = None,
    *,
    output: Output,
) -> None:
    """List variables; say whether they train."""
    from graphfreeze import api

    show(api.inspect(model, tags=split_tags(tags), deep=deep), output)
