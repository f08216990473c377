"""Promises G1 and G2 for every fixture with every kind of region: same forward, also poisoned, and same gradient."""

from collections import Counter
from functools import cache

import pytest

from tests.conftest import MODELS, OBJECT_MODELS
from tests.end_to_end.cases import CHOICES, FULL, KINDS, STRATEGIES, label, makes_sense, rewrite, weights_of
from tests.helpers.pairwise import everything, pairwise, shown

pytestmark = pytest.mark.tf

FACTORS = {
    "fixture": OBJECT_MODELS,
    "kind": tuple(KINDS),
    "strategy": STRATEGIES,
    "choice": CHOICES,
    "mode": ("eager", "function"),
}
MEET = (("fixture", "kind"), ("kind", "strategy"), ("kind", "mode"), ("strategy", "mode"))
CASES = everything(FACTORS, makes_sense) if FULL else pairwise(FACTORS, makes_sense, MEET)

ADDED = "several reads, whose gradients TensorFlow adds in another order"
OPTIMIZED = "TensorFlow optimizes a backward function without the kernel in another way; equal with its optimizer off"
ROUNDED = {"loop": ADDED, "shapes": ADDED, "keras_conv": OPTIMIZED}
"""Fixture -> why gradients are the same up to rounding only."""


def test_the_selection():
    """Shown by pytest -s."""
    print(f"\n{len(CASES)} cases:\n{shown(CASES)}")  # noqa: T201
    used = Counter((factor, value) for case in CASES for factor, value in case.items())
    assert {value for factor, value in used if factor == "fixture"} == {f for f in FACTORS["fixture"] if weights_of(f)}
    for factor in ("kind", "strategy", "choice", "mode"):
        assert {value for name, value in used if name == factor} == set(FACTORS[factor])


@cache
def original_of(fixture):
    from tests.helpers.models import FIXTURES
    from tests.helpers.promises import Original

    return Original(MODELS / fixture, FIXTURES[fixture].training(), FIXTURES[fixture].skip)


@pytest.mark.parametrize("case", CASES, ids=label)
def test_same_forward_and_same_gradient(case, tmp_path):
    from tests.helpers.promises import check_forward, check_gradients

    original, out = original_of(case["fixture"]), tmp_path / "out"
    plan = rewrite(case, out)
    check_forward(original, out, plan)
    assert check_gradients(original, out, plan, case["mode"], exact=case["fixture"] not in ROUNDED) > 0
