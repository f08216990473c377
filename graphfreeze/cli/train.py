"""``graphfreeze train``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphfreeze.cli.options import Model, Output, Overwrite
from graphfreeze.cli.output import tell, write_json

if TYPE_CHECKING:
    from graphfreeze.runtime.looping.result import Trained


def command(
    model: Model,
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="FILE",
            help="Examples: .npz (arrays by name), .csv (columns by header) or .tfrecord (tf.Example by feature), "
            "named as the function's inputs and 'targets'.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="OUT", help="Folder to write the trained model to.")
    ] = None,
    phases: Annotated[
        str,
        typer.Option(
            "--phases", metavar="NAME:EPOCHS,...", help="Phases in order, or a number of epochs for a model without."
        ),
    ] = "1",
    loss: Annotated[
        str,
        typer.Option(
            "--loss",
            metavar="LOSS",
            help="mse, cross-entropy or sparse-cross-entropy, perhaps with (output=NAME, from_logits=true); or the "
            "name of an output that is the loss.",
        ),
    ] = "mse",
    optimizer: Annotated[
        str,
        typer.Option(
            "--optimizer",
            metavar="OPTIMIZER",
            help="One of Keras, for example 'adamw(learning_rate=1e-3, weight_decay=0.01)'.",
        ),
    ] = "adamw",
    function: Annotated[
        str | None,
        typer.Option("--function", metavar="NAME", help="Signature or function to train through (serving_default)."),
    ] = None,
    column: Annotated[
        list[str],
        typer.Option(
            "--column", metavar="INPUT=NAME,...", help="What an input is called in FILE, else INPUT; may be repeated."
        ),
    ] = [],  # noqa: B006
    checkpoint_dir: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint-dir", metavar="DIR", help="Keep checkpoints here, and go on from the last one that is there."
        ),
    ] = None,
    checkpoint_every: Annotated[
        int | None,
        typer.Option("--checkpoint-every", min=1, metavar="N", help="Every N steps too, not only after phases."),
    ] = None,
    keep: Annotated[int, typer.Option("--keep", min=1, metavar="N", help="How many checkpoints stay.")] = 3,
    batch: Annotated[int, typer.Option("--batch", min=1, metavar="N", help="Examples in a batch.")] = 32,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed of the order of examples.")] = 0,
    shuffle: Annotated[
        bool, typer.Option("--shuffle/--no-shuffle", help="Draw the order of examples anew for each epoch.")
    ] = True,
    shared_state: Annotated[
        bool,
        typer.Option(
            "--shared-state/--separate-state", help="One set of optimizer statistics for all phases, or one each."
        ),
    ] = False,
    logdir: Annotated[
        Path | None, typer.Option("--logdir", metavar="DIR", help="Write scalars for TensorBoard here.")
    ] = None,
    overwrite: Overwrite = False,
    *,
    output: Output,
) -> None:
    """Train a model within its freeze."""
    if out is None and checkpoint_dir is None:
        raise typer.BadParameter("give --out OUT, --checkpoint-dir DIR, or both", param_hint="--out")
    if checkpoint_every is not None and checkpoint_dir is None:
        raise typer.BadParameter("it needs --checkpoint-dir DIR", param_hint="--checkpoint-every")
    columns = _columns(column)
    from graphfreeze import report
    from graphfreeze.report.trained import train_progress
    from graphfreeze.runtime.loading import start_quietly
    from graphfreeze.runtime.looping.request import parse_phases
    from graphfreeze.runtime.looping.train import train

    plan = parse_phases(phases)
    if not output.quiet:
        report.write_message("", "starting TensorFlow, which loads and runs the model")
    start_quietly()
    try:
        with train_progress(quiet=output.quiet or output.json) as progress:
            done = train(
                model,
                data,
                out=out,
                phases=plan,
                loss=loss,
                optimizer=optimizer,
                function=function,
                columns=columns,
                checkpoint_dir=checkpoint_dir,
                checkpoint_every=checkpoint_every,
                keep=keep,
                batch=batch,
                seed=seed,
                shuffle=shuffle,
                shared_state=shared_state,
                logdir=logdir,
                overwrite=overwrite,
                progress=progress,
            )
    except KeyboardInterrupt as stop:
        if str(stop):
            report.write_message("", str(stop))
        raise
    _show(done, output)


def _show(done: Trained, output: Output) -> None:
    from graphfreeze.report.trained import write_trained

    if output.json:
        write_json(done.to_dict())
    elif not output.quiet:
        write_trained(done, verbose=output.verbose)
    tell(done.warnings, None if output.quiet or done.out is None else Path(done.out))


def _columns(texts: list[str]) -> dict[str, list[str]]:
    """``INPUT=NAME,...``, several times."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, equals, keys = text.partition("=")
        if not equals or not name or not all(keys.split(",")):
            raise typer.BadParameter(f"'{text}' is not INPUT=NAME or INPUT=NAME,NAME,...", param_hint="--column")
        if name in found:
            raise typer.BadParameter(f"the input '{name}' is given twice", param_hint="--column")
        found[name] = keys.split(",")
    return found
