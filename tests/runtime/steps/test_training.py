"""A model trains by its own signatures, without graphfreeze, as a loop by hand in plain TensorFlow does."""

import os
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import graphfreeze
from graphfreeze.passes.pair import prepare_pair
from graphfreeze.savedmodel import open_draft
from tests.conftest import MODELS
from tests.helpers.compare import assert_bits_equal, assert_within_eps
from tests.helpers.oracle import Frozen, Oracle
from tests.helpers.stepping import Job, batch, run_jobs
from tests.helpers.training import Training

pytestmark = [pytest.mark.tf, pytest.mark.filterwarnings("ignore::UserWarning")]
X, IDS = {"x": ("float32", [8, 6], 0)}, {"ids": ("int32", [6, 4], 12)}


@dataclass(frozen=True)
class Case:
    """One model, what is frozen, and how it trains."""

    model: str
    freeze: str
    storage: str
    inputs: dict
    targets: tuple
    optimizer: str
    by_hand: object


FULL = os.environ.get("GRAPHFREEZE_FULL") == "1"
ALL = {
    "split": Case(
        *("mlp", "dense_0/kernel[:2]", "split", X, ("float32", [8, 3], 0)),
        "adamw(learning_rate=0.01, weight_decay=0.1)",
        lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    ),
    "mask": Case(
        *("mlp", "dense_0/kernel[[0, 1, 5], [1, 0, 2]]", "mask", X, ("float32", [8, 3], 0)),
        "sgd(learning_rate=0.05, momentum=0.9, nesterov=true)",
        lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    ),
    "stop": Case(
        *("mlp", "dense_0/*", "stop", X, ("float32", [8, 3], 0)),
        "Adam(learning_rate=1e-2, global_clipnorm=0.5)",
        lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5),
    ),
    "rows": Case(
        *("embedding", "emb/embeddings[:5]", "split", IDS, ("float32", [6, 3], 0)),
        "sgd(learning_rate=0.05, momentum=0.9, clipnorm=0.5)",
        lambda: keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=0.5),
    ),
}

CASES = ALL if FULL else {name: ALL[name] for name in ("split", "rows")}


@dataclass(frozen=True)
class Ran:
    """Where a case was written, and the checkpoints of its runs."""

    case: Case
    out: Path
    plan: object
    ten: str
    twenty: str
    resumed: str
    session: str


def given(case):
    return {**case.inputs, "targets": case.targets}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Every case: 20 steps; 10 of them resumed elsewhere and 10 more; 20 in a Session. Two processes in all."""
    folder = tmp_path_factory.mktemp("steps")
    found = {}
    for name, case in CASES.items():
        held, out = folder / name / "held", folder / name / "out"
        plan = graphfreeze.rewrite(MODELS / case.model, held, freeze=case.freeze)
        graphfreeze.train_step(held, out, loss="mse", optimizer=case.optimizer)
        found[name] = Ran(case, out, plan, *(str(folder / name / n) for n in ("ten", "twenty", "resumed", "session")))
    run_jobs([Job(str(r.out), given(r.case), {10: r.ten, 20: r.twenty}) for r in found.values()], folder)
    again = [Job(str(r.out), given(r.case), {20: r.resumed}, (10, r.ten)) for r in found.values()]
    again += [Job(str(r.out), given(r.case), {20: r.session}, loader="session") for r in found.values()]
    run_jobs(again, folder)
    return found


def values(ran, checkpoint):
    """The effective value of every variable of the model."""
    loaded = tf.saved_model.load(str(ran.out))
    loaded.signatures["restore"](path=tf.constant(checkpoint))
    (meta,) = ran.plan.meta_graphs
    return {v.path: graphfreeze.value(loaded, v.path) for v in meta.variables if v.kind == "weight"}


def oracle(ran):
    loaded = tf.saved_model.load(str(MODELS / ran.case.model))
    (meta,) = ran.plan.meta_graphs
    frozen = {v.path: Frozen(v.region.to_mask(), ran.case.storage) for v in meta.touched()}

    def of_step(step):
        return (tuple(tf.constant(v) for v in batch(given(ran.case), step).values()),)

    names = sorted(given(ran.case))

    def loss(model, inputs):
        fed = dict(zip(names, inputs[0], strict=True))
        targets = fed.pop("targets")
        (output,) = model.signatures["serving_default"](**fed).values()
        return tf.reduce_mean(tf.square(output - targets))

    return Oracle(loaded, frozen, Training(of_step, loss), "function"), frozen


@pytest.mark.parametrize("name", CASES)
def test_twenty_steps_follow_the_loop_by_hand(ran, name):
    run = ran[name]
    (meta,) = run.plan.meta_graphs
    assert {str(v.strategy) for v in meta.touched()} == {run.case.storage}
    hand, frozen = oracle(run)
    source = {path: np.array(v) for path, v in hand.effective().items()}
    loaded = tf.saved_model.load(str(MODELS / run.case.model))
    start = {v.path: graphfreeze_value(loaded, v.path) for v in meta.touched()}
    optimizer = run.case.by_hand()
    hand.train(optimizer, 20)
    for checkpoint in (run.twenty, run.session):
        found = values(run, checkpoint)
        for path, expected in hand.effective().items():
            assert_within_eps(found[path], expected, f"{name} {path}")
            assert (found[path] != source[path]).any()
        for path, rule in frozen.items():
            assert_bits_equal(found[path][rule.mask], start[path][rule.mask], f"{name} {path} frozen")


def graphfreeze_value(loaded, path):
    found = loaded
    for part in path.split("/"):
        found = getattr(found, part)
    return np.array(found.numpy())


@pytest.mark.parametrize("name", CASES)
def test_training_goes_on_bit_for_bit_in_a_new_process(ran, name):
    one, other = (tf.train.load_checkpoint(path) for path in (ran[name].twenty, ran[name].resumed))
    keys = one.get_variable_to_shape_map()
    assert keys == other.get_variable_to_shape_map()
    assert any(key.startswith("graphfreeze/train_step/state/") for key in keys)
    for key in keys:
        assert_bits_equal(other.get_tensor(key), one.get_tensor(key), key)


def test_the_keys_of_the_source_stay(ran):
    plain = set(tf.train.load_checkpoint(str(MODELS / "mlp" / "variables" / "variables")).get_variable_to_shape_map())
    written = str(ran["split"].out / "variables" / "variables")
    found = set(tf.train.load_checkpoint(written).get_variable_to_shape_map())
    assert plain <= found
    assert all(key.startswith("graphfreeze/") for key in found - plain)
    kept = set(tf.train.load_checkpoint(ran["split"].ten).get_variable_to_shape_map())
    assert kept == found - {"_CHECKPOINTABLE_OBJECT_GRAPH"}


def test_evaluate_changes_nothing_and_says_what_train_says(ran):
    run = ran["split"]
    loaded = tf.saved_model.load(str(run.out))
    fed = {k: tf.constant(v) for k, v in batch(given(run.case), 0).items()}
    first = loaded.signatures["evaluate"](**fed)
    again = loaded.signatures["evaluate"](**fed)
    step = loaded.signatures["train"](**fed)
    for key in ("loss", "mean_absolute_error"):
        assert first[key] == again[key] == step[key]
    assert loaded.signatures["evaluate"](**fed)["loss"] < first["loss"]


def test_old_signatures_are_kept(ran):
    plain, found = (tf.saved_model.load(str(p)) for p in (MODELS / "mlp", ran["split"].out))
    assert list(found.signatures) == [*plain.signatures, "train", "evaluate", "save", "restore"]
    x = tf.constant(batch(X, 3)["x"])
    for name, signature in plain.signatures.items():
        expected, actual = signature(x=x), found.signatures[name](x=x)
        assert expected.keys() == actual.keys()
        for key in expected:
            assert_bits_equal(actual[key], expected[key], name)


@pytest.mark.parametrize("name", CASES)
def test_finalize_takes_the_steps_off(ran, name, tmp_path):
    """G5: as the source, saved again by TensorFlow."""
    run = ran[name]
    graphfreeze.finalize(run.out, tmp_path / "plain")
    loaded = tf.saved_model.load(str(MODELS / run.case.model))
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(loaded, str(tmp_path / "again"), signatures=dict(loaded.signatures), options=options)
    found = graphfreeze.diff(tmp_path / "again", tmp_path / "plain")
    assert found.equal, found.changes


def test_verify_looks_at_the_model_without_its_steps(ran, tmp_path, monkeypatch):
    """A signature that saves would write to a path that is made up."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pair").mkdir()
    pair = prepare_pair(open_draft(MODELS / "mlp"), open_draft(ran["split"].out), tmp_path / "pair")
    (meta,) = open_draft(pair.rewritten).model.proto.meta_graphs
    assert sorted(meta.signature_def) == ["__saved_model_init_op", "hidden", "scores", "serving_default"]
    if FULL:
        assert graphfreeze.verify(MODELS / "mlp", ran["split"].out, steps=2).failures == ()
    assert [p.name for p in tmp_path.iterdir()] == ["pair"]
