"""The program: its help, its commands, its entry point."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

from graphfreeze.cli import checkpoint, diff, finalize, inspect, phases, plan, rewrite, train, train_step, verify
from graphfreeze.cli.failures import PROGRAM, exit_codes
from graphfreeze.cli.options import with_shared

HELP = """Freeze = hold variables at their values in training, NOT make them constants.

graphfreeze takes a TensorFlow SavedModel, freezes chosen variables, slices or single elements, and writes a SavedModel
that anyone can go on training, without the model's source and without graphfreeze.

A selector is GLOB or GLOB[INDEX] or re:PATTERN, for example 'encoder/**', 'embeddings[:50000]', 'dense/kernel[:, 64:]'.
The last rule that covers an element decides.
"""
EPILOG = (
    "Exit codes: 0 done, 1 a bug of graphfreeze, 2 usage or spec, 3 a selector matched nothing, 4 the model holds "
    "something unsupported, 5 verification failed, 6 input or output, 7 nothing left to train, 10 'diff' found "
    "differences, 130 interrupted."
)


class Commands(TyperGroup):
    """The command group; turns every failure into a message on stderr and an exit code."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        with exit_codes({}):
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> None:  # noqa: D102
        with exit_codes(ctx.meta):
            super().invoke(ctx)
            sys.stdout.flush()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Puts the text first: its first line says which meaning of "freeze" this is."""
        formatter.write_text(HELP.partition("\n")[0])
        formatter.write_paragraph()
        self.format_usage(ctx, formatter)
        for paragraph in HELP.split("\n\n")[1:]:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(paragraph)
        self.format_options(ctx, formatter)
        self.format_epilog(ctx, formatter)


class Command(TyperCommand):
    """One command; its usage line names arguments as the documentation does."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: D102
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


Row = tuple[str, Callable[..., None]]

COMMANDS: tuple[Row, ...] = (
    ("inspect", inspect.command),
    ("plan", plan.command),
    ("rewrite", rewrite.command),
    ("train", train.command),
    ("train-step", train_step.command),
    ("verify", verify.command),
    ("phases", phases.command),
    ("finalize", finalize.command),
    ("diff", diff.command),
    ("checkpoint", checkpoint.command),
)
"""In the order of ``--help``, which is the order in which they are used."""


def run() -> None:
    """Entry point of the console script and of ``python -m graphfreeze``: a process that does one thing and ends."""
    # One command makes few cycles and no use of linear algebra, for which numpy would start a thread per core.
    gc.set_threshold(100_000)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    code: object = 0
    try:
        main()
    except SystemExit as stop:
        code = 0 if stop.code is None else stop.code
    if not isinstance(code, int):
        sys.exit(code)  # type: ignore[arg-type]
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    # Everything is written, synced and cleaned up; taking a large model apart again would only take time.
    os._exit(code)


def main() -> None:
    """The program, for a process that goes on; ends in ``SystemExit``."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    # As an exception, so that what is half written is removed; without a word, as a killed program ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Typer makes the options of all commands before it looks at the words; of one, where it is named, is enough.
    named = [row for row in COMMANDS if row[0] in sys.argv[1:2]]
    program(named or COMMANDS)(prog_name=PROGRAM)


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"{PROGRAM} {version(PROGRAM)}")
        raise typer.Exit


Version: TypeAlias = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
]


def _callback(ctx: typer.Context, version: Version = False) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(2)


def program(commands: Sequence[Row] = COMMANDS) -> typer.Typer:
    """The program with these commands."""
    made = typer.Typer(
        cls=Commands,
        help=HELP,
        epilog=EPILOG,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback(invoke_without_command=True)(_callback)
    for name, command in commands:
        made.command(name, cls=Command)(with_shared(command))
    return made
