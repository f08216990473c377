"""A converted checkpoint goes on as if training had never been interrupted, and comes back whole."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import MODELS
from tests.end_to_end.cases import FULL

pytestmark = pytest.mark.tf

RULES = ("split", "mask", "live", "strict", "mixed", "enabled")
OPTIMIZERS = (
    "keras adam",
    "keras adamw",
    "keras momentum",
    "keras ema",
    "keras rmsprop",
    "keras amsgrad",
    "keras ftrl",
    "keras sgd",
    "keras nadam",
    "keras loss scale",
    "tf1 adam",
    "tf1 momentum",
    "tf1 adagrad",
)
MOVES_LIVE = ("keras adamw", "keras ftrl")
"""``copy=live`` does not hold against decay, nor against weights computed anew: converted or not, `plan` warns."""
EVERYTHING = [(r, o) for r in RULES for o in OPTIMIZERS if r != "live" or o not in MOVES_LIVE]
CASES = [
    ("split", "keras adam"),
    ("mask", "keras momentum"),
    ("live", "keras adam"),
    ("strict", "keras ema"),
    ("mixed", "keras ftrl"),
    ("mixed", "keras loss scale"),
    ("enabled", "keras adam"),
    ("split", "tf1 momentum"),
    ("mixed", "tf1 adam"),
]


@pytest.mark.parametrize(("rule", "optimizer"), EVERYTHING if FULL else CASES, ids=lambda value: value)
def test_the_same_trajectory(rule, optimizer, tmp_path):
    from tests.checkpoints.trajectory import Course, keras_optimizers

    Course(tmp_path, rule, keras_optimizers()[optimizer]).check()


def test_the_same_trajectory_with_tf_keras():
    command = [sys.executable, "-m", "tests.checkpoints.trajectory", *(RULES if FULL else ("mixed",))]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    ran = subprocess.run(command, cwd=MODELS.parents[1], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    results = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert len(results) == 5 * (len(RULES) if FULL else 1)
    assert not [r for r in results if r["result"] != "ok"]
