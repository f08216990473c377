"""What ``inspect`` says after its table: can this be trained, and what did a rewrite note in it?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.text import Text

from graphfreeze.report.layout import printable, wrapped

if TYPE_CHECKING:
    from graphfreeze.planning.plan import MetaGraphPlan
    from graphfreeze.planning.records import FunctionTraining, Training

_MOST = 5
"""Functions and rules that are listed without ``-v``."""


def render_training(meta: MetaGraphPlan, width: int | None, *, verbose: bool = False) -> list[Text]:
    """The answer as lines of at most ``width`` columns."""
    most = None if verbose else _MOST
    lines: list[Text] = []
    if meta.training is not None:
        lines += _answer(meta.training, width, most)
    if meta.freeze is not None:
        made = meta.freeze
        version = f" {made.version}" if made.version else ""
        lines += wrapped(
            f"frozen by graphfreeze{version}, format {made.format}: {_spec(made.spec, most)}", width, hanging=4
        )
    return lines


def _answer(training: Training, width: int | None, most: int | None) -> list[Text]:
    weights = "1 weight" if training.weights == 1 else f"{training.weights:,} weights"
    through = _listed([f.name for f in training.functions if f.weights], most)
    if training.trains:
        answer = f"can be trained: {weights} through {through}" + (f"; {training.why}" if training.why else "")
    else:
        answer = f"cannot be trained: {training.why}"
    lines = wrapped(printable(answer), width, hanging=4, style="bold")
    if training.trains:
        lines += _without(training.functions, width, most)
    if training.without_gradient is not None:
        found = _listed(training.without_gradient, most) if training.without_gradient else "none"
        lines += wrapped(printable(f"ops on the way without a gradient: {found}"), width, hanging=4)
    return lines


def _without(functions: Iterable[FunctionTraining], width: int | None, most: int | None) -> list[Text]:
    """The functions that train nothing, by reason."""
    reasons: dict[str, list[str]] = {}
    for function in functions:
        if not function.weights:
            reasons.setdefault(function.why, []).append(function.name)
    lines: list[Text] = []
    for why, names in reasons.items():
        lines += wrapped(printable(f"not through {_listed(names, most)}: {why}"), width, indent=2, hanging=4)
    return lines


def _listed(names: Iterable[str], most: int | None) -> str:
    shown = [f"'{n}'" for n in names]
    rest = 0 if most is None else len(shown) - most
    return ", ".join(shown if rest <= 0 else shown[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def _spec(spec: dict[str, Any], most: int | None) -> str:
    """The rules as on the command line."""
    rules = [f"{rule['verb']} '{rule['selector']}'" for rule in spec.get("rules", ())]
    options = [f"{key} {spec[key]}" for key in ("strategy", "copy") if spec.get(key) not in (None, "auto", "snapshot")]
    rest = 0 if most is None else len(rules) - most
    shown = rules if rest <= 0 else [*rules[:most], f"{rest:,} more rules"]
    phases = [phase["name"] for phase in spec.get("phases", ())]
    options += [f"phases {_listed(phases, most)}"] if phases else []
    return ", ".join([*shown, *options]) or "no rules"
