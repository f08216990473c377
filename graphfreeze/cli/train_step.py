"""``graphfreeze train-step``."""

from __future__ import annotations

from typing import Annotated

import typer

from graphfreeze.cli.options import Model, Out, Output, Overwrite
from graphfreeze.cli.output import tell, write_json


def command(
    model: Model,
    out: Out,
    loss: Annotated[
        str,
        typer.Option(
            "--loss",
            metavar="LOSS",
            help="mse, cross-entropy or sparse-cross-entropy, perhaps with (output=NAME, from_logits=true); or the "
            "name of an output (in a TF1 graph, a tensor) that is the loss.",
        ),
    ],
    optimizer: Annotated[
        str,
        typer.Option(
            "--optimizer",
            metavar="OPTIMIZER",
            help="One of Keras (for a TF1 graph, of tf.compat.v1.train), for example 'adamw(learning_rate=1e-3)'.",
        ),
    ],
    function: Annotated[
        str | None,
        typer.Option("--function", metavar="NAME", help="Signature or function to train through (serving_default)."),
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option("--targets", metavar="NAME:SHAPE:DTYPE", help="The input for targets, e.g. 'labels:?,10:int64'."),
    ] = None,
    shared_state: Annotated[
        bool,
        typer.Option(
            "--shared-state/--separate-state", help="One set of optimizer statistics for all phases, or one each."
        ),
    ] = False,
    overwrite: Overwrite = False,
    *,
    output: Output,
) -> None:
    """Put training steps into a model."""
    from graphfreeze import report
    from graphfreeze.runtime.loading import start_quietly
    from graphfreeze.runtime.steps.build import train_step

    if not output.quiet:
        report.write_message("", "starting TensorFlow, which loads the model")
    start_quietly()
    done = train_step(
        model,
        out,
        loss=loss,
        optimizer=optimizer,
        function=function,
        targets=targets,
        shared_state=shared_state,
        overwrite=overwrite,
    )
    if output.json:
        write_json(done.to_dict())
    elif not output.quiet:
        report.write_steps(done, verbose=output.verbose)
    tell(done.warnings, None if output.quiet else out)
