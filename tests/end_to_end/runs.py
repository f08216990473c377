"""Training a rewritten model against the oracle, and what is compared afterwards."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import graphfreeze
from graphfreeze.planning.plan import Plan, VariablePlan
from graphfreeze.selection import Strategy
from tests.helpers.compare import assert_bits_equal, assert_within_eps
from tests.helpers.optimizers import OPTIMIZERS
from tests.helpers.oracle import Frozen, Oracle
from tests.helpers.promises import effective, parts_of
from tests.helpers.training import Mode, Optimizer, Training, train
from tests.helpers.variables import Array, variables_by_path

STEPS = 20
Same = Callable[[Any, Any, str], None]


def load(path: Path) -> Any:
    return tf.saved_model.load(str(path))


def held_by(plan: Plan) -> list[VariablePlan]:
    return [v for v in plan.meta_graphs[0].variables if v.strategy is not None]


def rules_for_oracle(plan: Plan) -> dict[str, Frozen]:
    """What the plan holds, as constants of the oracle."""
    rules = {}
    for variable in held_by(plan):
        assert variable.region is not None
        assert variable.strategy is not None
        mask = variable.region.to_mask()
        whole = variable.strategy is Strategy.STOP
        rules[variable.path] = Frozen(mask, "stop" if whole else variable.strategy.value)
    return rules


def train_held(
    out: Path, training: Training, optimizer: Optimizer, steps: int = STEPS, mode: Mode = "eager", held: Any = None
) -> Any:
    """The loaded rewritten model after plain training of what graphfreeze.trainable_variables lists."""
    held = load(out) if held is None else held
    train(training, held, graphfreeze.trainable_variables(held), optimizer, steps=steps, mode=mode)
    return held


def assert_nothing_moved(original: Path, held: Any, plan: Plan, skip: Collection[str] = ()) -> None:
    """G3: the effective value of frozen elements, by graphfreeze.value and put together by hand, bit for bit."""
    before = variables_by_path(load(original))
    for parts in parts_of(held, plan):
        path = parts.plan.path
        value = graphfreeze.value(held, path)
        assert_bits_equal(value, effective(parts), f"{path}: graphfreeze.value")
        assert parts.plan.region is not None
        frozen = parts.plan.region.to_mask()
        assert frozen.any()
        if path not in skip:
            assert_bits_equal(value[frozen], before[path].numpy()[frozen], f"{path}: frozen elements")


def assert_follows(oracle: Oracle, held: Any, same: Same = assert_within_eps) -> None:
    """G4: every variable that trains, in part or whole, is where the oracle's is."""
    values = oracle.effective()
    assert len(values) == len(graphfreeze.trainable_variables(held))
    for path, value in values.items():
        same(graphfreeze.value(held, path), value, path)


def check_training(
    original: Path,
    out: Path,
    plan: Plan,
    training: Training,
    optimizer: str | Callable[[], Optimizer],
    *,
    steps: int = STEPS,
    mode: Mode = "eager",
    same: Same = assert_within_eps,
) -> Any:
    """G3 and G4: trains both and compares; the rewritten model, trained."""
    make = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    held = train_held(out, training, make(), steps, mode)
    oracle = Oracle(load(original), rules_for_oracle(plan), training, mode)
    before: dict[str, Array] = oracle.effective()
    oracle.train(make(), steps)
    after = oracle.effective()
    assert any(np.any(after[path] != before[path]) for path in after) or not after
    assert_nothing_moved(original, held, plan)
    assert_follows(oracle, held, same)
    return held
