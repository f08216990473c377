"""Rows of a partitioned table, and the ids that they belong to by each strategy of looking them up."""

import sys

import numpy as np
import pytest

import graphfreeze
from tests.conftest import MODELS
from tests.helpers.compare import assert_bits_equal

pytestmark = pytest.mark.tf
sys.path.insert(0, str(MODELS.parent))

WORDS = (
    "'table' is looked up with partition_strategy 'mod': its rows are selected as they are stored, and id i is row "
    "i // 3 of part i % 3. What is frozen belongs to ids 0, 1, 3, 6, 9"
)
IDS = {"div": [0, 1, 2, 3, 4], "mod": [0, 1, 3, 6, 9]}
"""What the first five rows that are stored belong to."""


@pytest.mark.parametrize("kind", ["ref", "resource"])
@pytest.mark.parametrize("strategy", IDS)
def test_the_plan_says_which_ids_are_frozen(strategy, kind, tmp_path):
    """By ``div`` ids are the numbers of rows; by ``mod`` they are not, and the plan says which they are."""
    import tensorflow as tf
    from recipes import tf1 as recipes

    from tests.helpers.sessions import Model

    tf1 = tf.compat.v1
    recipes.kinds("table", serve=recipes.looked_up(strategy))[f"table_{kind}"](tmp_path / "source")
    plan = graphfreeze.rewrite(tmp_path / "source", tmp_path / "out", freeze="table[:5]")
    assert [w for w in plan.warnings if "partition_strategy" in w] == ([WORDS] if strategy == "mod" else [])
    everything = {"ids:0": np.arange(10, dtype=np.int32)}
    with Model(tmp_path / "source") as plain, Model(tmp_path / "out") as held:
        before = plain.run("rows:0", everything)
        assert_bits_equal(held.run("rows:0", everything), before, "before training")
        train = tf1.train.GradientDescentOptimizer(0.1).minimize(held.graph.get_tensor_by_name("loss:0"))
        held.run(train, everything)
        after = held.run("rows:0", everything)
    same = [i for i in range(10) if after[i].tobytes() == before[i].tobytes()]
    assert same == IDS[strategy]


def test_a_table_that_is_frozen_whole_needs_no_warning():
    plan = graphfreeze.plan(MODELS / "tf1_partitioned_ref", freeze="table", allow_empty=True)
    assert not [w for w in plan.warnings if "partition_strategy" in w]


@pytest.mark.parametrize("kind", ["ref", "resource"])
def test_a_table_that_is_also_taken_as_a_whole(kind):
    plan = graphfreeze.plan(MODELS / f"tf1_partitioned_{kind}", freeze="table[:5, :2]")
    assert WORDS in plan.warnings
