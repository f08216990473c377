"""Promises G1 and G2 for every fixture with every kind of region: same forward, also poisoned, and same gradient."""

from collections import Counter

import pytest

from tests.conftest import MODELS
from tests.end_to_end.cases import CHOICES, FULL, KINDS, STRATEGIES, label, makes_sense, rewrite, weights_of
from tests.helpers.pairwise import everything, pairwise, shown

pytestmark = pytest.mark.tf

FACTORS = {
    "fixture": sorted(path.name for path in MODELS.iterdir()),
    "kind": tuple(KINDS),
    "strategy": STRATEGIES,
    "choice": CHOICES,
    "mode": ("eager", "function"),
}
MEET = (("fixture", "kind"), ("kind", "strategy"), ("kind", "mode"), ("strategy", "mode"))
CASES = everything(FACTORS, makes_sense) if FULL else pairwise(FACTORS, makes_sense, MEET)

SEVERAL_READS = {}
"""Fixture -> why gradients are the same up to rounding only: TensorFlow adds those of several reads in another order."""


def test_the_selection():
    """Shown by pytest -s."""
    print(f"\n{len(CASES)} cases:\n{shown(CASES)}")
    used = Counter((factor, value) for case in CASES for factor, value in case.items())
    assert {value for factor, value in used if factor == "fixture"} == {f for f in FACTORS["fixture"] if weights_of(f)}
    for factor in ("kind", "strategy", "choice", "mode"):
        assert {value for name, value in used if name == factor} == set(FACTORS[factor])


@pytest.mark.parametrize("case", CASES, ids=label)
def test_same_forward_and_same_gradient(case, tmp_path):
    from tests.helpers.models import FIXTURES
    from tests.helpers.promises import check_forward, check_gradients

    original, out = MODELS / case["fixture"], tmp_path / "out"
    plan = rewrite(case, out)
    check_forward(original, out, plan)
    training = FIXTURES[case["fixture"]].training()
    exact = case["fixture"] not in SEVERAL_READS
    assert check_gradients(original, out, plan, training, case["mode"], exact=exact) > 0
