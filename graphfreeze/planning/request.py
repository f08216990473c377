"""Turns the arguments of a call into what is to be planned: the one place where option names get their meaning."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TypedDict, TypeVar

from graphfreeze.errors import InputOutputError, UsageError
from graphfreeze.planning.decide import Options
from graphfreeze.planning.model import Task
from graphfreeze.planning.plan import Plan
from graphfreeze.selection import BatchNorm, Copy, Region, Spec, Strategy, make_spec, read_spec

Selectors = str | Sequence[str]
_Choice = TypeVar("_Choice", Strategy, Copy, BatchNorm)


class PlanOptions(TypedDict, total=False):
    """Options that ``plan`` and ``rewrite`` share."""

    spec: str | PathLike[str] | Spec | None
    """A spec file (TOML); its rules come before ``freeze`` and ``train``."""
    strategy: str | None
    """``auto``, ``stop``, ``split`` or ``mask``."""
    copy: str | None
    """``snapshot`` or ``live``, for ``mask``."""
    batch_norm: str | None
    """``freeze-stats`` (with gamma and beta frozen whole, moving statistics are frozen too), ``update`` (they are not)
    or ``inference`` (they are, and ops in training mode use them instead of the batch's)."""
    strict: bool
    """Whole variables are read from a copy, so that nothing can move them."""
    enable: bool
    """``train`` may turn on variables that the source holds untrainable."""
    state: bool
    """``freeze`` may name state (counters, seeds) by its exact name."""
    allow_empty: bool
    """Do not mind if nothing is left to train."""
    lite: bool
    """Guard writes with ops that LiteRT has."""
    tags: Iterable[str] | None
    """Tags of the only meta graph to plan."""


def plan_task(
    command: str,
    freeze: Selectors = (),
    train: Selectors = (),
    *,
    held: Mapping[str, Region] | None = None,
    spec: str | PathLike[str] | Spec | None = None,
    strategy: str | None = None,
    copy: str | None = None,
    batch_norm: str | None = None,
    strict: bool = False,
    enable: bool = False,
    state: bool = False,
    allow_empty: bool = False,
    lite: bool = False,
    tags: Iterable[str] | None = None,
) -> Task:
    """The task of one call.

    Raises:
        UsageError: a selector, the spec or an option makes no sense, or there are no rules.
    """
    file = spec if isinstance(spec, Spec) or spec is None else read_spec(Path(spec))
    chosen = make_spec(
        _several(freeze),
        _several(train),
        file=file,
        strategy=_choice(Strategy, "strategy", strategy),
        copy=_choice(Copy, "copy", copy),
        batch_norm=_choice(BatchNorm, "batch_norm", batch_norm),
        base_dir=Path.cwd(),
    )
    if held and chosen.phases:
        raise UsageError("--add extends a freeze, and phases replace it: leave --add out, or the [[phase]] tables")
    if command != "inspect" and not chosen.rules and not chosen.phases:
        raise UsageError("Nothing says what to freeze. Pass --freeze or --train with a selector, or --spec with a file")
    return Task(
        command,
        rules=chosen.rules,
        options=Options(
            chosen.strategy, chosen.copy, strict, enable, state, allow_empty, lite=lite, batch_norm=chosen.batch_norm
        ),
        tags=None if tags is None else frozenset([tags] if isinstance(tags, str) else tags),
        held=held or {},
        phases=chosen.phases,
    )


def _several(selectors: Selectors) -> Sequence[str]:
    return [selectors] if isinstance(selectors, str) else list(selectors)


def _choice(kind: type[_Choice], option: str, value: str | None) -> _Choice | None:
    if value is None:
        return None
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(f"'{k}'" for k in kind)
        raise UsageError(f"Unknown {option} '{value}'. Expected one of {known}") from None


def given_plan(plan: Plan | str | PathLike[str], beside: bool) -> Plan:
    """A plan that was made before, as a value or a JSON file; ``beside`` says that options were given too."""
    if beside:
        raise UsageError("A plan already says everything: give either plan, or selectors and options, not both")
    if isinstance(plan, Plan):
        return plan
    try:
        return Plan.from_dict(json.loads(Path(plan).read_text(encoding="utf-8")))
    except OSError as error:
        raise InputOutputError(f"Cannot read the plan '{plan}': {error.strerror}") from error
    except ValueError as error:
        raise UsageError(
            f"'{plan}' is not JSON ({error}). Make a plan with: graphfreeze plan MODEL ... --json > plan.json"
        ) from error
