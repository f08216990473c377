"""LiteRT: what converts and trains with a step before a freeze does so after it, and frozen elements stay there."""

import os

import numpy as np
import pytest
import tensorflow as tf

import graphfreeze
from tests.helpers.compare import assert_bits_equal
from tests.helpers.stepping import batch

pytestmark = [pytest.mark.tf, pytest.mark.filterwarnings("ignore::UserWarning")]
INPUTS = {"x": ("float32", [4, 6], 0), "targets": ("float32", [4, 3], 0)}


class Dense(tf.Module):
    """Two layers with tanh and a batch of fixed size; ``value`` gives out the weights as the model sees them."""

    def __init__(self):
        super().__init__()
        generator = np.random.default_rng(1)
        self.w = tf.Variable(generator.standard_normal((6, 5)).astype(np.float32), name="w")
        self.b = tf.Variable(np.zeros(5, np.float32), name="b")
        self.o = tf.Variable(generator.standard_normal((5, 3)).astype(np.float32), name="o")

    @tf.function(input_signature=[tf.TensorSpec([4, 6], tf.float32, name="x")])
    def run(self, x):
        return {"y": tf.tanh(tf.tanh(x @ self.w + self.b) @ self.o)}

    @tf.function(input_signature=[])
    def value(self):
        return {"w": tf.identity(self.w), "b": tf.identity(self.b), "o": tf.identity(self.o)}

    @tf.function(input_signature=[tf.TensorSpec([4, 6], tf.float32, name="x"), tf.TensorSpec([4, 3], name="targets")])
    def step(self, x, targets):
        """Descent with decay, by hand: what a program on a phone is given today."""
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.run(x)["y"] - targets))
        variables = [self.w, self.b, self.o]
        for gradient, variable in zip(tape.gradient(loss, variables), variables, strict=True):
            variable.assign(variable - 0.05 * gradient - 0.001 * variable)
        return {"loss": loss}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("lite") / "model"
    model = Dense()
    tf.saved_model.save(model, str(path), signatures={"serving_default": model.run, "value": model.value})
    return path


def interpreted(path):
    """The converted model's ``train`` and ``value``; builtin ops only."""
    converter = tf.lite.TFLiteConverter.from_saved_model(str(path), signature_keys=["train", "value"])
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    converter.experimental_enable_resource_variables = True
    interpreter = tf.lite.Interpreter(model_content=converter.convert())
    return interpreter, *(interpreter.get_signature_runner(name) for name in ("train", "value"))


FROZEN = {"nothing": None, "box": np.s_[:2], "points": ([0, 1, 3], [1, 0, 2])}
SELECTORS = {"box": "w[:2]", "points": "w[[0, 1, 3], [1, 0, 2]]"}

TRIED = tuple(FROZEN) if os.environ.get("GRAPHFREEZE_FULL") == "1" else ("box", "points")
"""In short runs without the source itself, which the frozen models stand for."""


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
@pytest.mark.parametrize("name", TRIED)
def test_converts_and_trains(source, name, tmp_path):
    held, mask = source, np.zeros((6, 5), bool)
    if name in SELECTORS:
        held = tmp_path / "held"
        graphfreeze.rewrite(source, held, freeze=SELECTORS[name])
        mask[FROZEN[name]] = True
    graphfreeze.train_step(held, tmp_path / "out", loss="mse", optimizer="sgd(learning_rate=0.05, momentum=0.9)")
    interpreter, train, value = interpreted(tmp_path / "out")
    assert interpreter is not None
    before = value()
    stored = tf.train.load_checkpoint(str(source / "variables" / "variables"))
    for key, found in before.items():
        assert_bits_equal(found, stored.get_tensor(f"{key}/.ATTRIBUTES/VARIABLE_VALUE"), key)
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    for step in range(20):
        fed = batch(INPUTS, step)
        lite = train(**fed)
        full = loaded.signatures["train"](**{k: tf.constant(v) for k, v in fed.items()})
        np.testing.assert_allclose(lite["loss"], full["loss"].numpy(), rtol=1e-5)
    after, expected = value(), loaded.signatures["value"]()
    assert_bits_equal(after["w"][mask], before["w"][mask], "frozen")
    assert (after["w"] != before["w"])[~mask].all()
    for key, found in after.items():
        np.testing.assert_allclose(found, expected[key].numpy(), rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def own_step(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "model"
    model = Dense()
    signatures = {"serving_default": model.run, "value": model.value, "train": model.step}
    tf.saved_model.save(model, str(path), signatures=signatures)
    return path


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
@pytest.mark.parametrize("name", TRIED)
def test_a_step_of_the_source_converts_with_lite(own_step, name, tmp_path):
    held, mask = own_step, np.zeros((6, 5), bool)
    if name in SELECTORS:
        held = tmp_path / "held"
        graphfreeze.rewrite(own_step, held, freeze=SELECTORS[name], lite=True)
        mask[FROZEN[name]] = True
    interpreter, train, value = interpreted(held)
    assert interpreter is not None
    before = value()
    for step in range(20):
        assert np.isfinite(train(**batch(INPUTS, step))["loss"])
    after = value()
    assert_bits_equal(after["w"][mask], before["w"][mask], "frozen")
    assert (after["w"] != before["w"])[~mask].all()


def test_without_lite_such_a_step_does_not_convert(own_step, tmp_path):
    plan = graphfreeze.plan(own_step, freeze="w[:2]", lite=True)
    guards = {w.guard for m in plan.meta_graphs for v in m.variables for w in v.writes if w.guard}
    assert guards == {"selected from old and new"}
    graphfreeze.rewrite(own_step, tmp_path / "held", freeze="w[:2]")
    with pytest.raises(Exception, match="ResourceStridedSliceAssign"):
        interpreted(tmp_path / "held")
