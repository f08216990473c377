"""The command line: words in, one call of ``graphfreeze.api``, a report or JSON out. No logic lives here.

Data goes to stdout, everything else to stderr. Whatever slows the start (numpy, protobuf, rich) is imported inside the
commands, so that ``--help`` answers at once; ``tests/test_cli.py`` holds that.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

from graphfreeze.errors import GraphfreezeError, InternalError

if TYPE_CHECKING:
    from graphfreeze.planning.plan import Plan

PROGRAM = "graphfreeze"
DEBUG = "graphfreeze.debug"
INTERRUPTED = 130

HELP = """Freeze = hold variables at their values in training, NOT make them constants.

graphfreeze takes a TensorFlow SavedModel, freezes chosen variables, slices or single elements, and writes a SavedModel
that anyone can go on training, without the model's source and without graphfreeze.

A selector is GLOB or GLOB[INDEX] or re:PATTERN, for example 'encoder/**', 'embeddings[:50000]', 'dense/kernel[:, 64:]'.
The last rule that covers an element decides.
"""
EPILOG = (
    "Exit codes: 0 done, 1 a bug of graphfreeze, 2 usage or spec, 3 a selector matched nothing, 4 the model holds "
    "something unsupported, 5 verification failed, 6 input or output, 7 nothing left to train, 130 interrupted."
)


class Commands(TyperGroup):
    """The command group; turns every failure into a message on stderr and an exit code."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        with _exit_codes({}):
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> None:  # noqa: D102
        with _exit_codes(ctx.meta):
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


app = typer.Typer(
    cls=Commands,
    help=HELP,
    epilog=EPILOG,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point of the console script and of ``python -m graphfreeze``."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    # As an exception, so that what is half written is removed; without a word, as a killed program ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    app(prog_name=PROGRAM)


# Options that several commands share.


def _set_debug(ctx: typer.Context, value: bool) -> bool:
    ctx.meta[DEBUG] = value
    return value


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"{PROGRAM} {version(PROGRAM)}")
        raise typer.Exit


def _split_tags(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(tag.strip() for tag in text.split(",") if tag.strip())


Model: TypeAlias = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a SavedModel.")]
Out: TypeAlias = Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")]
Freeze: TypeAlias = Annotated[
    list[str], typer.Option("--freeze", metavar="SELECTOR", help="Freeze what the selector covers; may be repeated.")
]
Train: TypeAlias = Annotated[
    list[str],
    typer.Option("--train", metavar="SELECTOR", help="Keep trainable; after all --freeze; may be repeated."),
]
Spec: TypeAlias = Annotated[
    Path | None, typer.Option("--spec", metavar="FILE", help="Rules in a TOML file, before those given here.")
]
Strategy: TypeAlias = Annotated[
    Literal["auto", "stop", "split", "mask"] | None,
    typer.Option("--strategy", help="How frozen elements are held; auto, unless the spec file says otherwise."),
]
Copy: TypeAlias = Annotated[
    Literal["snapshot", "live"] | None,
    typer.Option("--copy", help="With mask: take frozen values from a copy, or from the variable itself."),
]
Strict: TypeAlias = Annotated[
    bool, typer.Option("--strict", help="With stop: read a copy, so that no optimizer can move the frozen values.")
]
Enable: TypeAlias = Annotated[
    bool, typer.Option("--enable", help="Let --train turn on variables that the source holds untrainable.")
]
State: TypeAlias = Annotated[bool, typer.Option("--state", help="Let an exact name freeze a variable of kind state.")]
Add: TypeAlias = Annotated[bool, typer.Option("--add", help="Extend the freeze that MODEL has, do not replace it.")]
AllowEmpty: TypeAlias = Annotated[bool, typer.Option("--allow-empty", help="Allow that nothing is left to train.")]
Tags: TypeAlias = Annotated[
    str | None, typer.Option("--tags", metavar="TAG,...", help="Only the meta graph that has these tags.")
]
Weights: TypeAlias = Annotated[
    Literal["copy", "link"], typer.Option("--weights", help="Copy the weight files, or hard-link them (read-only).")
]
Overwrite: TypeAlias = Annotated[bool, typer.Option("--overwrite", help="Replace OUT where it exists.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Quiet: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="Less: totals and warnings only, no progress.")]
Verbose: TypeAlias = Annotated[bool, typer.Option("--verbose", "-v", help="More: all variables, reads and writes.")]
Debug: TypeAlias = Annotated[
    bool, typer.Option("--debug", callback=_set_debug, is_eager=True, help="Show the traceback of an error.")
]
Version: TypeAlias = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
]


# The commands.


@app.callback(invoke_without_command=True)
def _program(ctx: typer.Context, version: Version = False) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(2)


@app.command("inspect", cls=Command)
def inspect_command(
    model: Model,
    tags: Tags = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """List the variables and where they are used."""
    _refuse_both(quiet, verbose)
    from graphfreeze import api

    _show(api.inspect(model, tags=_split_tags(tags)), json, quiet, verbose)


@app.command("plan", cls=Command)
def plan_command(
    model: Model,
    freeze: Freeze = [],  # noqa: B006
    train: Train = [],  # noqa: B006
    spec: Spec = None,
    strategy: Strategy = None,
    copy: Copy = None,
    strict: Strict = False,
    enable: Enable = False,
    state: State = False,
    add: Add = False,
    allow_empty: AllowEmpty = False,
    tags: Tags = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Show what a rewrite would do, and why."""
    _refuse_both(quiet, verbose)
    from graphfreeze import api

    plan = api.plan(
        model,
        freeze=tuple(freeze),
        train=tuple(train),
        spec=spec,
        strategy=strategy,
        copy=copy,
        strict=strict,
        enable=enable,
        state=state,
        add=add,
        allow_empty=allow_empty,
        tags=_split_tags(tags),
    )
    _show(plan, json, quiet, verbose)


@app.command("rewrite", cls=Command)
def rewrite_command(
    model: Model,
    out: Out,
    freeze: Freeze = [],  # noqa: B006
    train: Train = [],  # noqa: B006
    spec: Spec = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="Execute a plan that 'graphfreeze plan --json' printed."),
    ] = None,
    strategy: Strategy = None,
    copy: Copy = None,
    strict: Strict = False,
    enable: Enable = False,
    state: State = False,
    add: Add = False,
    allow_empty: AllowEmpty = False,
    weights: Weights = "copy",
    overwrite: Overwrite = False,
    tags: Tags = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Write the model with elements frozen."""
    _refuse_both(quiet, verbose)
    from graphfreeze import api, report

    with report.copy_progress(quiet=quiet) as progress:
        done = api.rewrite(
            model,
            out,
            freeze=tuple(freeze),
            train=tuple(train),
            spec=spec,
            plan=plan,
            strategy=strategy,
            copy=copy,
            strict=strict,
            enable=enable,
            state=state,
            add=add,
            allow_empty=allow_empty,
            tags=_split_tags(tags),
            weights=weights,
            overwrite=overwrite,
            progress=progress,
        )
    _show(done, json, quiet, verbose, out=out)


@app.command("finalize", cls=Command)
def finalize_command(
    trained: Annotated[Path, typer.Argument(metavar="TRAINED", help="Folder of a rewritten, perhaps trained model.")],
    out: Out,
    unfreeze: Annotated[
        list[str],
        typer.Option("--unfreeze", metavar="GLOB", help="Lift only this part of the freeze; may be repeated."),
    ] = [],  # noqa: B006
    weights: Weights = "copy",
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Write the plain, trained model back."""
    _refuse_both(quiet, verbose)
    from graphfreeze import api, report

    with report.copy_progress(quiet=quiet) as progress:
        done = api.finalize(
            trained, out, unfreeze=tuple(unfreeze), overwrite=overwrite, weights=weights, progress=progress
        )
    if json:
        where = {"schema": 1, "command": "finalize", "model": str(trained), "out": str(done.out)}
        _write_json({**where, "variables": list(done.variables), "warnings": list(done.warnings)})
    elif not quiet:
        report.write_restored(done.variables, verbose=verbose)
    _tell(done.warnings, None if quiet else out)


# Output.


def _show(plan: Plan, json: bool, quiet: bool, verbose: bool, *, out: Path | None = None) -> None:
    """Data to stdout, the rest to stderr. A quiet command that wrote something has no data to show."""
    from graphfreeze import report

    if json:
        _write_json(plan.to_dict())
    elif out is None or not quiet:
        report.write_plan(plan, verbose=verbose, quiet=quiet)
    _tell(plan.warnings, None if quiet else out)


def _write_json(data: dict[str, Any]) -> None:
    from json import dumps

    sys.stdout.write(dumps(data, indent=2) + "\n")
    sys.stdout.flush()


def _tell(warnings: tuple[str, ...], out: Path | None) -> None:
    from graphfreeze import report

    for warning in warnings:
        report.write_message("warning", warning, style="yellow")
    if out is not None:
        report.write_message("", f"wrote {out}")


# Failures.


def _refuse_both(quiet: bool, verbose: bool) -> None:
    if quiet and verbose:
        raise typer.BadParameter("it excludes --verbose", param_hint="--quiet")


@contextmanager
def _exit_codes(meta: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    except typer.Exit:
        raise
    except BrokenPipeError:
        _silence_closed_streams()
        raise typer.Exit(0) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        from graphfreeze import report

        code, message = _explain(error)
        if meta.get(DEBUG):
            import traceback

            traceback.print_exception(error)
        report.write_message("error", message, style="bold red")
        raise typer.Exit(code) from None


def _explain(error: Exception) -> tuple[int, str]:
    """The exit code and the words for an error."""
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else PROGRAM
        words = error.format_message().replace(": Value error, ", ": ").rstrip(".")
        if near := getattr(error, "possibilities", None):
            words = f"{error.message}. Did you mean {' or '.join(map(repr, sorted(near)))}?"
        return 2, f"{words}\nFor help: {command} --help"
    if isinstance(error, GraphfreezeError) and not isinstance(error, InternalError):
        return error.exit_code, str(error)
    if isinstance(error, OSError):
        name = f": '{error.filename}'" if error.filename else ""
        return 6, f"{error.strerror or error}{name}"
    words = " ".join(str(error).split())
    what = words if isinstance(error, InternalError) else f"{type(error).__name__}: {words}"
    return 1, f"This is a bug of graphfreeze: {what}; run again with --debug for the traceback"


def _silence_closed_streams() -> None:
    """The reader is gone (``| head``): what is still buffered goes nowhere, without a complaint at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
