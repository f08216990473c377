"""Options that several commands share: one name, one default and one help text each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypedDict

import typer

DEBUG = "graphfreeze.debug"


def _set_debug(ctx: typer.Context, value: bool) -> bool:
    ctx.meta[DEBUG] = value
    return value


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
BatchNorm: TypeAlias = Annotated[
    Literal["freeze-stats", "update", "inference"] | None,
    typer.Option(
        "--batch-norm",
        help="Moving statistics of a frozen batch norm: frozen too (default), updated, or frozen and used in training.",
    ),
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
Lite: TypeAlias = Annotated[bool, typer.Option("--lite", help="Guard writes with ops that LiteRT can convert.")]
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


class Planning(TypedDict):
    """The options by which a freeze is planned, as ``api.plan`` and ``api.rewrite`` take them."""

    freeze: tuple[str, ...]
    train: tuple[str, ...]
    spec: Path | None
    strategy: Literal["auto", "stop", "split", "mask"] | None
    copy: Literal["snapshot", "live"] | None
    batch_norm: Literal["freeze-stats", "update", "inference"] | None
    strict: bool
    enable: bool
    state: bool
    add: bool
    allow_empty: bool
    lite: bool
    tags: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Output:
    """How a command says what it did."""

    json: bool
    quiet: bool
    verbose: bool


def with_shared(command: Callable[..., None]) -> Callable[..., None]:
    """Puts shared options in the place of each parameter that is annotated with a bundle of them."""
    own = signature(command, eval_str=True)
    bundles = {p.name: SHARED[p.annotation] for p in own.parameters.values() if p.annotation in SHARED}
    options = {name: signature(bundle, eval_str=True).parameters for name, bundle in bundles.items()}
    parameters = [
        parameter.replace(kind=Parameter.KEYWORD_ONLY)
        for mine in own.parameters.values()
        for parameter in (options[mine.name].values() if mine.name in options else (mine,))
    ]

    def run(**given: Any) -> None:
        for name, bundle in bundles.items():
            given[name] = bundle(**{option: given.pop(option) for option in options[name]})
        command(**given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    # Typer reads the options of a command off its signature.
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _planning(
    freeze: Freeze = [],  # noqa: B006
    train: Train = [],  # noqa: B006
    spec: Spec = None,
    strategy: Strategy = None,
    copy: Copy = None,
    batch_norm: BatchNorm = None,
    strict: Strict = False,
    enable: Enable = False,
    state: State = False,
    add: Add = False,
    allow_empty: AllowEmpty = False,
    lite: Lite = False,
    tags: Tags = None,
) -> Planning:
    return {
        "freeze": tuple(freeze),
        "train": tuple(train),
        "spec": spec,
        "strategy": strategy,
        "copy": copy,
        "batch_norm": batch_norm,
        "strict": strict,
        "enable": enable,
        "state": state,
        "add": add,
        "allow_empty": allow_empty,
        "lite": lite,
        "tags": split_tags(tags),
    }


def _output(json: Json = False, quiet: Quiet = False, verbose: Verbose = False, debug: Debug = False) -> Output:
    if quiet and verbose:
        raise typer.BadParameter("it excludes --verbose", param_hint="--quiet")
    return Output(json, quiet, verbose)


SHARED: dict[Any, Callable[..., Any]] = {Planning: _planning, Output: _output}
"""Bundle -> what makes it of its options."""


def split_tags(text: str | None) -> tuple[str, ...] | None:
    """The tags in ``TAG,...``; None where the option was not given."""
    return None if text is None else tuple(tag.strip() for tag in text.split(",") if tag.strip())
