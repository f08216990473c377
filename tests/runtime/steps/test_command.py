"""``graphfreeze train-step`` as it is typed, and what is said of calls that make no sense."""

import json

import pytest
import tensorflow as tf

import graphfreeze
from graphfreeze.errors import UsageError
from graphfreeze.runtime.steps.losses import Loss, compute
from tests.cli.standing_in import run
from tests.conftest import MODELS

pytestmark = [pytest.mark.tf, pytest.mark.filterwarnings("ignore::UserWarning")]
UNNAMED = str(MODELS / "unnamed")
OPTIONS = ("--loss", "mse", "--optimizer", "sgd(learning_rate=0.1)")


def test_what_it_prints(tmp_path):
    graphfreeze.rewrite(UNNAMED, tmp_path / "held", freeze="first[:2]")
    result = run("train-step", str(tmp_path / "held"), str(tmp_path / "out"), *OPTIONS, "-v")
    assert result.exit_code == 0
    assert "starting TensorFlow, which loads the model" in result.stderr
    assert result.stderr.endswith(f"wrote {tmp_path / 'out'}\n")
    lines = result.stdout.splitlines()
    assert lines[0] == "added signatures: train, evaluate, save, restore"
    assert lines[1].startswith("inputs of training: x: float32[?,4], targets: float32[?,")
    assert "  first/graphfreeze/trainable" in lines
    shown = run("train-step", str(tmp_path / "held"), str(tmp_path / "out"), *OPTIONS, "--overwrite", "--json", "-q")
    data = json.loads(shown.stdout)
    assert (data["schema"], data["command"], data["signatures"]) == (1, "train-step", lines[0][18:].split(", "))
    assert data["steps"][0]["signature"] == "train"
    assert data["optimizer_bytes"] == sum(
        v.numpy().nbytes for v in tf.saved_model.load(str(tmp_path / "out")).graphfreeze.train_step.state
    )
    again = run("train-step", str(tmp_path / "out"), str(tmp_path / "twice"), *OPTIONS)
    assert again.exit_code == 2
    assert "carries training steps already" in again.stderr
    found = run("plan", str(tmp_path / "out"), "--freeze", "first[:1]")
    assert "taken off (evaluate, restore, save, train)" in " ".join(found.stderr.split())


def test_a_plain_model_gets_steps_and_loses_them_again(tmp_path):
    done = graphfreeze.train_step(UNNAMED, tmp_path / "out", loss="mse", optimizer="adam")
    assert len(done.trained["train"]) == 4
    graphfreeze.finalize(tmp_path / "out", tmp_path / "plain")
    loaded = tf.saved_model.load(UNNAMED)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(loaded, str(tmp_path / "again"), signatures=dict(loaded.signatures), options=options)
    found = graphfreeze.diff(tmp_path / "again", tmp_path / "plain")
    assert found.equal, found.changes


MESSAGES = {
    "another loss": (
        {"loss": "hinge"},
        (
            "Function 'serving_default' gives out no float tensor 'hinge'. A loss by name is one of 'mse', "
            "'cross-entropy', 'sparse-cross-entropy'. It gives out: output_0, mse, cross-entropy, sparse-cross-entropy"
        ),
    ),
    "another function": (
        {"function": "call"},
        "The model has no signature or function 'call'. Did you mean '__call__'?",
    ),
    "targets without a dtype": (
        {"targets": "labels:?,3"},
        (
            "'labels:?,3' does not describe targets. Write NAME:SHAPE:DTYPE, for example 'labels:?,10:float32', or "
            "'labels:?:int64'"
        ),
    ),
    "targets of no dtype": (
        {"targets": "labels:?:int63"},
        "TensorFlow has no dtype 'int63', which 'labels:?:int63' names. Write for example int64",
    ),
    "targets that an input is": (
        {"targets": "x:?,3:float32"},
        (
            "Function 'serving_default' has an input 'x' of its own. Give the targets another name: "
            "--targets NAME:SHAPE:DTYPE"
        ),
    ),
    "targets without use": (
        {"loss": "output_0", "targets": "t:?,3:float32"},
        "The loss 'output_0' is an output of the function and compares nothing with targets",
    ),
    "averages that nothing puts back": (
        {"optimizer": "adam(use_ema=true)"},
        (
            "With use_ema the averages have to come back into the model, and a program without Python can only leave "
            "that to the step: give ema_overwrite_frequency too"
        ),
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages(name, tmp_path):
    options, message = MESSAGES[name]
    with pytest.raises(UsageError) as caught:
        graphfreeze.train_step(UNNAMED, tmp_path / "out", **{"loss": "mse", "optimizer": "adam", **options})
    assert str(caught.value) == message
    assert not (tmp_path / "out").exists()


def test_losses_are_those_of_keras():
    import keras

    generator = tf.random.Generator.from_seed(3)
    logits, numbers = generator.normal([6, 4]), tf.constant([0, 3, 1, 2, 2, 0], tf.int64)
    share, classes = tf.nn.softmax(logits), tf.one_hot(numbers, 4)
    one, yes = tf.sigmoid(logits[:, :1]), tf.constant([[0.0], [1], [1], [0], [1], [0]])
    losses = keras.losses
    sparse = losses.SparseCategoricalCrossentropy(from_logits=True)
    cases = [
        (Loss("mse"), logits, classes, losses.MeanSquaredError()),
        (Loss("cross-entropy", None, True), logits, classes, losses.CategoricalCrossentropy(from_logits=True)),
        (Loss("cross-entropy", None, False), share, classes, losses.CategoricalCrossentropy()),
        (Loss("cross-entropy", None, True), logits[:, :1], yes, losses.BinaryCrossentropy(from_logits=True)),
        (Loss("cross-entropy", None, False), one, yes, losses.BinaryCrossentropy()),
        (Loss("sparse-cross-entropy", None, True), logits, numbers, sparse),
        (Loss("sparse-cross-entropy", None, False), share, numbers, losses.SparseCategoricalCrossentropy()),
    ]
    for loss, output, targets, expected in cases:
        found, metrics = compute(loss, output, targets)
        tf.debugging.assert_near(found, expected(targets, output), rtol=1e-5, atol=1e-6, message=str(loss))
        assert len(metrics) == 1
    right = tf.reduce_mean(tf.cast(tf.argmax(logits, -1) == numbers, tf.float32))
    assert compute(cases[-1][0], share, numbers)[1]["accuracy"] == right
