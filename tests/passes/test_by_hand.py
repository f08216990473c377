"""The plain model that holds frozen elements by hand: what it computes is what a person would put back by hand."""

import numpy as np
import pytest

import graphfreeze
from graphfreeze.passes.pair import prepare_pair
from graphfreeze.savedmodel import open_draft
from tests.conftest import MODELS


def held(name, folder, *freeze):
    graphfreeze.rewrite(MODELS / name, folder / "out", freeze=freeze, allow_empty=True)
    return prepare_pair(open_draft(MODELS / name), open_draft(folder / "out"), folder / "pair")


def test_a_model_that_writes_nothing_frozen_stays_where_it_is(tmp_path):
    assert held("embedding", tmp_path, "**[:1]").plain == MODELS / "embedding"
    assert held("statistics", tmp_path / "more", "kernel[:1]").plain == MODELS / "statistics"


@pytest.mark.parametrize("name", ["train_keras", "train_tf_keras", "train_ops", "train_ops_more", "train_loop"])
def test_every_function_can_be_compared(name, tmp_path):
    pair = held(name, tmp_path, "**[:1]")
    (evidence,) = pair.evidence
    assert pair.plain == tmp_path / "pair" / "plain-seeded"
    assert {c.label: c.apart for c in evidence.callables} == dict.fromkeys((c.label for c in evidence.callables), "")
    assert [len(c.writes) > 6 for c in evidence.callables if "train" in c.label] == [True] * (
        4 if name.startswith("train_ops") else 2
    )


def test_slots_of_what_is_frozen_whole_must_not_move(tmp_path):
    (evidence,) = held("train_ops", tmp_path, "tables/ftrl", "tables/adagrad[:1]").evidence
    (still,) = (c.still for c in evidence.callables if c.label == "train[0]")
    assert still == {("slots", "ftrl", "0"), ("slots", "ftrl", "1")}


@pytest.mark.tf
@pytest.mark.parametrize("name", ["train_ops", "train_ops_more"])
def test_it_moves_as_the_fixture_with_elements_put_back(name, tmp_path):
    import tensorflow as tf

    from tests.end_to_end.test_guards import restored, take_step, variables_of

    oracle = restored(name)
    before = {n: v.numpy() for n, v in variables_of(oracle, name).items()}
    loaded = tf.saved_model.load(str(held(name, tmp_path, "**[:3]").plain))

    def put_back():
        for n, v in variables_of(oracle, name).items():
            v.assign(np.concatenate([before[n][:3], v.numpy()[3:]]))

    for step in range(5):
        take_step(loaded, name, step)
        take_step(oracle, name, step, put_back)
    for n, v in variables_of(loaded, name).items():
        expected = variables_of(oracle, name)[n].numpy()
        assert v.numpy()[:3].tobytes() == before[n][:3].tobytes()
        np.testing.assert_allclose(
            v.numpy(), expected, rtol=0, atol=16 * np.finfo(np.float32).eps * np.abs(expected).max()
        )
