"""Trains the rewritten model as its user would, and looks at what moved.

The functions to train through are as few as reach everything that the gradients reached.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphfreeze.lowering.holding import Callable, Evidence
from graphfreeze.runtime.optimizers import Make
from graphfreeze.runtime.verifying.gradients import Mode, loss_of
from graphfreeze.runtime.verifying.inputs import Guess, Inputs
from graphfreeze.runtime.verifying.models import Loaded
from graphfreeze.savedmodel import differing, largest_change


@dataclass(frozen=True, slots=True)
class Moves:
    """What training did to one variable."""

    frozen_moved: int
    change: float
    """The largest change of a frozen element."""
    moved: int
    """How many trainable elements moved."""


def smallest_cover(reached: dict[str, list[bool]]) -> list[str]:
    """A few functions that between them reach all that any reaches: always the one that adds most, then its order."""
    left = {i for flags in reached.values() for i, flag in enumerate(flags) if flag}
    chosen: list[str] = []
    while left:
        best = max(reached, key=lambda label: sum(reached[label][i] for i in left))
        chosen.append(best)
        left -= {i for i, flag in enumerate(reached[best]) if flag}
    return chosen


def train(
    loaded: Loaded,
    evidence: Evidence,
    callables: Sequence[tuple[Callable, Guess]],
    inputs: Inputs,
    make: Make,
    *,
    steps: int,
    mode: Mode,
) -> dict[str, Moves]:
    """Trains on a fresh load; what became of each variable, by path.

    Raises:
        Exception: whatever TensorFlow or the optimizer raises.
    """
    import tensorflow as tf

    variables = loaded.trains(evidence)
    before = _values(loaded, evidence)
    functions = [loaded.function(c) for c, _ in callables]
    optimizer = make()
    optimizer.build(variables)

    def step(batches: Any) -> None:
        with tf.GradientTape() as tape:
            # The list says what trains; a flag that someone changed later must not.
            for variable in variables:
                tape.watch(variable)
            losses = [loss_of(f(*args, **kwargs)) for f, (args, kwargs) in zip(functions, batches, strict=True)]
            loss = tf.add_n([one for one in losses if one is not None])
        optimizer.apply(tape.gradient(loss, variables), variables)

    run = tf.function(step, autograph=False) if mode == "function" else step
    with warnings.catch_warnings():
        # Keras says that some variables have no gradient; the report says so too.
        warnings.simplefilter("ignore")
        for number in range(steps):
            run([inputs.make(f, c, number, g) for f, (c, g) in zip(functions, callables, strict=True)])
        optimizer.finalize_variable_values(variables)
    return _moves(before, _values(loaded, evidence), evidence)


def _values(loaded: Loaded, evidence: Evidence) -> dict[str, NDArray[Any]]:
    found = {h.path: loaded.effective(h) for h in evidence.holdings}
    return found | {o.path: np.asarray(loaded.other(o).numpy()) for o in evidence.others}


def _moves(before: dict[str, NDArray[Any]], after: dict[str, NDArray[Any]], evidence: Evidence) -> dict[str, Moves]:
    found: dict[str, Moves] = {}
    for holding in evidence.holdings:
        one, other = before[holding.path], after[holding.path]
        frozen = holding.frozen.to_mask()
        moved = differing(one, other)
        found[holding.path] = Moves(
            int((moved & frozen).sum()), largest_change(one, other, frozen), int((moved & ~frozen).sum())
        )
    for path in (o.path for o in evidence.others):
        found[path] = Moves(0, 0.0, int(differing(before[path], after[path]).sum()))
    return found
