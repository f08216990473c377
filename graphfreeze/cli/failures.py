"""How failures look: words on stderr, an exit code, and a traceback only where it was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer

from graphfreeze.cli.options import DEBUG
from graphfreeze.errors import GraphfreezeError, InternalError

PROGRAM = "graphfreeze"
INTERRUPTED = 130


@contextmanager
def exit_codes(meta: dict[str, Any]) -> Iterator[None]:
    """Every failure of what runs inside becomes a message on stderr and an exit code."""
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
