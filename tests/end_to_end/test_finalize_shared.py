"""Promise G5 on real models: after training and saving again, finalize gives what the original would be."""

import pytest

import graphfreeze
from tests.helpers.expected import pinned, selectors
from tests.helpers.shared_models import require_shared_models, shared_model, shared_model_names

pytestmark = pytest.mark.tf

NOT_LOADED = ("tfagents-dice", "tf24-uninitializedvariable")
"""TensorFlow 2.21 cannot load these, rewritten or not."""
CASES = [
    (name, case)
    for name in shared_model_names()
    for case in ("whole", "slice")
    if name not in NOT_LOADED
    and pinned()["shared"].get(name, {}).get("format") == ["TF2"]
    and pinned()["shared"][name].get(case, {}).get("exit") == 0
]


def test_there_are_models():
    require_shared_models()
    assert len({name for name, _ in CASES}) >= 11


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_trained_real_model_is_what_the_original_would_be(name, case, tmp_path):
    import tensorflow as tf

    from tests.end_to_end.test_finalize import effective_values
    from tests.helpers.canonical import assert_same_model
    from tests.helpers.resaved import assign_all, leftovers, save, save_again, train_a_little

    original = shared_model(name)
    chosen = selectors(graphfreeze.inspect(original), case)
    plan = graphfreeze.rewrite(original, tmp_path / "out", freeze=chosen, strict=case == "whole", allow_empty=True)
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    train_a_little(loaded)
    values = effective_values(loaded, plan)
    trained = save(loaded, tmp_path / "trained", signatures=True)
    expected = save_again(original, tmp_path / "expected", signatures=True, change=assign_all(values))
    graphfreeze.finalize(trained, tmp_path / "plain")
    assert_same_model(tmp_path / "plain", expected)
    assert graphfreeze.diff(expected, tmp_path / "plain").equal
    assert not leftovers(tmp_path / "plain")
