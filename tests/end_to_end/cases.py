"""What the end-to-end tests freeze: fixtures, kinds of regions, strategies, and which of a fixture's variables."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import graphfreeze
from graphfreeze.planning.plan import Plan, VariablePlan
from tests.conftest import MODELS
from tests.helpers.models import FIXTURES

FULL = os.environ.get("GRAPHFREEZE_FULL") == "1"
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of region. ``index`` is None where a variable of that shape has no such region."""

    index: Callable[[Shape], str | None]
    strategies: tuple[str, ...] = ("auto", "mask", "live")


def _rows(shape: Shape) -> str | None:
    return f"[:{shape[0] // 2}]" if shape and shape[0] > 1 else None


def _row_list(shape: Shape) -> str | None:
    return "[[0, 2, 3]]" if shape and shape[0] > 3 else None


def _columns(shape: Shape) -> str | None:
    return "[..., ::2]" if len(shape) > 1 and shape[-1] > 1 else None


def _box(shape: Shape) -> str | None:
    if len(shape) < 2 or min(shape[0], shape[-1]) < 2 or 0 in shape:
        return None
    return f"[:{shape[0] - 1}, ..., 1:]"


def _points(shape: Shape) -> str | None:
    if not shape or shape[0] < 2 or np.prod(shape) < 3:
        return None
    lists = [[0, 1], *([0, 1] if size > 1 else [0, 0] for size in shape[1:])]
    return "[" + ", ".join(map(str, lists)) + "]"


def _mask(shape: Shape) -> str | None:
    return "[@MASK]" if shape and np.prod(shape) > 2 else None


SPLITTABLE = ("auto", "split", "mask", "live")
KINDS: dict[str, Kind] = {
    "whole": Kind(lambda _: "", ("auto", "stop", "mask")),
    "strict": Kind(lambda _: "", ("auto", "stop")),
    "rows": Kind(_rows, SPLITTABLE),
    "row list": Kind(_row_list, SPLITTABLE),
    "columns": Kind(_columns, SPLITTABLE),
    "box": Kind(_box),
    "points": Kind(_points),
    "dense mask": Kind(_mask),
}
STRATEGIES = ("auto", "stop", "split", "mask", "live")
"""As on the command line; ``live`` is ``mask`` with ``copy=live``."""
CHOICES = ("even", "odd", "all")
"""Which of the variables that can carry the region are frozen, by their place in the object graph."""


@cache
def weights_of(fixture: str) -> tuple[VariablePlan, ...]:
    """Those that training moves and no function that the tests call writes, in object-graph order."""
    variables = graphfreeze.inspect(MODELS / fixture).meta_graphs[0].variables
    called = {call.function for call in (*FIXTURES[fixture].calls, *FIXTURES[fixture].others)}
    return tuple(
        v
        for v in variables
        if v.kind == "weight"
        and v.elements
        and any(r.access != "shape" for r in v.reads)
        and not any(re.sub(r"^__inference_|(_\d+)+$", "", w.function) in called for w in v.writes)
    )


def frozen_in(fixture: str, kind: str, choice: str) -> tuple[VariablePlan, ...]:
    """The variables that a case freezes."""
    fitting = [v for v in weights_of(fixture) if v.shape is not None and KINDS[kind].index(v.shape) is not None]
    start, step = {"even": (0, 2), "odd": (1, 2), "all": (0, 1)}[choice]
    return tuple(fitting[start::step])


def makes_sense(case: dict[str, str]) -> bool:
    """Whether something can be frozen that way and something is left to train."""
    kind, choice = case["kind"], case["choice"]
    if case.get("strategy", "auto") not in KINDS[kind].strategies:
        return False
    frozen = frozen_in(case["fixture"], kind, choice)
    if case.get("strategy") == "split" and any(v.writes for v in frozen):
        return False
    if choice == "all":
        # The same as "even" where there is one; and whole variables, all of them, leave no gradient to compare.
        return len(frozen) > 1 and kind not in ("whole", "strict")
    return bool(frozen)


def selectors(fixture: str, kind: str, choice: str, folder: Path) -> list[str]:
    """The selectors of a case; dense masks are written to the folder."""
    found = []
    for number, variable in enumerate(frozen_in(fixture, kind, choice)):
        index = KINDS[kind].index(variable.shape or ())
        if index == "[@MASK]":
            file = folder / f"mask_{number}.npy"
            np.save(file, dense_mask(variable.shape or (), number))
            index = f"[@{file}]"
        found.append(f"{variable.path}{index}")
    return found


def dense_mask(shape: Shape, seed: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """About 40 % frozen, neither none nor all."""
    mask = np.random.default_rng(seed).random(shape) < 0.4
    mask.flat[0], mask.flat[-1] = True, False
    return mask


def options(kind: str, strategy: str) -> dict[str, Any]:
    """The keyword arguments of graphfreeze.rewrite."""
    named = {"live": {"strategy": "mask", "copy": "live"}}.get(strategy, {"strategy": strategy})
    return {**named, "strict": kind == "strict", "allow_empty": True}


def rewrite(case: dict[str, str], out: Path) -> Plan:
    """Freezes what the case says."""
    out.parent.mkdir(parents=True, exist_ok=True)
    chosen = selectors(case["fixture"], case["kind"], case["choice"], out.parent)
    return graphfreeze.rewrite(
        MODELS / case["fixture"], out, freeze=chosen, **options(case["kind"], case.get("strategy", "auto"))
    )


def label(case: dict[str, str]) -> str:
    """A test id."""
    return "-".join(value.replace(" ", "_") for value in case.values())
