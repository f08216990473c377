"""Promises G3 and G4 against the oracle: every strategy with every optimizer and kind of region, every fixture."""

from collections import Counter
from itertools import combinations

import pytest

from tests.conftest import MODELS, OBJECT_MODELS
from tests.end_to_end.cases import CHOICES, FULL, KINDS, STRATEGIES, label, makes_sense, rewrite
from tests.helpers.pairwise import pairwise, shown

pytestmark = pytest.mark.tf

OPTIMIZERS = (
    "sgd",
    "momentum",
    "nesterov",
    "adam",
    "adamw",
    "adagrad",
    "rmsprop",
    "lion",
    "adam_ema",
    "adam_clipnorm",
    "ftrl",
    "sparse_momentum",
)
NOT_WITH_LIVE = frozenset({"adamw", "adam_ema", "ftrl"})
"""copy=live does not hold against decay and averages by a Python optimizer (see test_live_...)."""
ONLY = {
    "shapes": frozenset({"sgd", "sparse_momentum"}),
    "scalars": frozenset({"sgd", "sparse_momentum"}),
    "dtypes": frozenset({"sgd", "momentum", "nesterov", "adagrad", "rmsprop", "lion", "sparse_momentum"}),
}
"""Keras has no slots for a variable without static shape or without elements, and no Adam in complex128, in the
original neither."""

FEWER_STEPS = {"layer_norm_transformer": 8, "gathers": 10, "keras_gru": 10, "digits": 10}
"""Many variables or a loop: an eager step takes long. The full product runs them all."""

FACTORS = {
    "fixture": OBJECT_MODELS,
    "kind": tuple(KINDS),
    "strategy": STRATEGIES,
    "choice": CHOICES,
    "mode": ("eager", "function"),
    "optimizer": OPTIMIZERS,
}
MEET = (("strategy", "optimizer"), ("fixture", "mode"), ("kind", "strategy"), ("mode", "strategy"))


def trains(case):
    """Whether the original can be trained that way at all, and the strategy promises to hold."""
    if case["optimizer"] not in ONLY.get(case["fixture"], OPTIMIZERS) or not makes_sense(case):
        return False
    return not (case["strategy"] == "live" and case["optimizer"] in NOT_WITH_LIVE)


ALL_PAIRS = tuple(combinations(FACTORS, 2))
"""For the full run: the product of all factors is 35,000 cases, most of a day."""
CASES = pairwise(FACTORS, trains, ALL_PAIRS if FULL else MEET)


def test_the_selection():
    """Shown by pytest -s."""
    from tests.helpers import optimizers

    print(f"\n{len(CASES)} cases:\n{shown(CASES)}")  # noqa: T201
    assert set(OPTIMIZERS) == set(optimizers.OPTIMIZERS)
    used = Counter((case["strategy"], case["optimizer"]) for case in CASES)
    for strategy in STRATEGIES:
        missing = set(OPTIMIZERS) - {optimizer for s, optimizer in used if s == strategy}
        assert missing == (NOT_WITH_LIVE if strategy == "live" else set())


@pytest.mark.parametrize("case", CASES, ids=label)
def test_frozen_elements_stay_and_the_rest_follows_the_oracle(case, tmp_path):
    from tests.end_to_end.runs import STEPS, check_training
    from tests.helpers.models import FIXTURES

    original, out = MODELS / case["fixture"], tmp_path / "out"
    plan = rewrite(case, out)
    training, steps = FIXTURES[case["fixture"]].training(), STEPS if FULL else FEWER_STEPS.get(case["fixture"], STEPS)
    check_training(original, out, plan, training, case["optimizer"], steps=steps, mode=case["mode"])
