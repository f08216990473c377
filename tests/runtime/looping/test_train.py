"""The loop against one written by hand, its kinds of data, what it refuses, and where it stops."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import graphfreeze
from graphfreeze.errors import InputOutputError, UsageError
from graphfreeze.runtime.looping.request import parse_phases, plan_of
from graphfreeze.runtime.looping.store import Store
from graphfreeze.savedmodel import OBJECT_GRAPH_KEY, open_draft
from tests.conftest import MODELS

ROOT = MODELS.parents[1]
SPARSE = "sparse-cross-entropy"
ROWS = 20


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    out = tmp_path_factory.mktemp("models") / "frozen"
    graphfreeze.rewrite(MODELS / "mlp", out, freeze=["dense_0/*", "out/kernel[:, :1]"])
    return out


@pytest.fixture(scope="module")
def data():
    numbers = np.random.default_rng(0)
    return {"x": numbers.standard_normal((ROWS, 6)).astype(np.float32), "targets": numbers.integers(0, 3, ROWS)}


def values(folder):
    bundle = open_draft(folder).model.bundle
    return {k: np.asarray(bundle.read_tensor(k)).tobytes() for k in bundle.entries if k != OBJECT_GRAPH_KEY}


def words(call, kind, *arguments, **options):
    with pytest.raises(kind) as error:
        call(*arguments, **options)
    return str(error.value)


@pytest.mark.tf
def test_equals_a_loop_by_hand(frozen, data, tmp_path):
    import keras
    import tensorflow as tf

    done = graphfreeze.train(
        frozen, data, out=tmp_path / "out", phases=3, loss=SPARSE, optimizer="adamw(learning_rate=0.01)", batch=8
    )
    model = tf.saved_model.load(str(MODELS / "mlp"))
    k0, b0, k1, b1, k2, b2 = (
        getattr(getattr(model, layer), part).numpy()
        for layer in ("dense_0", "dense_1", "out")
        for part in ("kernel", "bias")
    )
    trained = [tf.Variable(v) for v in (k1, b1, k2[:, 1:], b2)]
    optimizer = keras.optimizers.AdamW(0.01)
    losses = []
    for epoch in range(3):
        order, each = np.random.default_rng([0, epoch]).permutation(ROWS), []
        for start in range(0, ROWS, 8):
            rows = order[start : start + 8]
            with tf.GradientTape() as tape:
                hidden = tf.tanh(tf.tanh(data["x"][rows] @ k0 + b0) @ trained[0] + trained[1])
                logits = hidden @ tf.concat([k2[:, :1], trained[2]], 1) + trained[3]
                each.append(tf.nn.sparse_softmax_cross_entropy_with_logits(data["targets"][rows], logits))
                loss = tf.reduce_mean(each[-1])
            optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
        losses.append(np.mean([tf.reduce_mean(one).numpy() for one in each]))
    result = tf.saved_model.load(str(tmp_path / "out"))
    assert list(result.signatures) == list(model.signatures)
    held = graphfreeze.value(result, "out/kernel")
    assert held[:, :1].tobytes() == k2[:, :1].tobytes()
    assert graphfreeze.value(result, "dense_0/kernel").tobytes() == k0.tobytes()
    found = [graphfreeze.value(result, n) for n in ("dense_1/kernel", "dense_1/bias")] + [held[:, 1:]]
    found.append(graphfreeze.value(result, "out/bias"))
    for one, other in zip(found, trained, strict=True):
        limit = 16 * np.finfo(np.float32).eps * np.abs(other.numpy()).max()
        assert np.abs(one - other.numpy()).max() <= limit
    np.testing.assert_allclose([e.loss for e in done.epochs], losses, rtol=1e-5)
    assert (done.steps, done.resumed_from, [e.steps for e in done.epochs]) == (9, None, [3, 3, 3])
    assert done.trained[None][2] == "out/kernel/graphfreeze/trainable"


def stopping(step):
    def progress(tick):
        if tick.step == step:
            raise RuntimeError("enough")

    return progress


@pytest.mark.tf
def test_a_dataset_goes_on_where_it_was(frozen, data, tmp_path):
    import tensorflow as tf

    def run(dataset, folder, **more):
        more = {"phases": 3, "loss": SPARSE, "checkpoint_every": 1, **more}
        return graphfreeze.train(frozen, dataset, checkpoint_dir=tmp_path / folder, **more)

    def shuffled(seed):
        return tf.data.Dataset.from_tensor_slices((data["x"], data["targets"])).shuffle(ROWS, seed=seed).batch(8)

    def by_epoch(number):
        return shuffled(number)

    for name, make in {"seeded": lambda: shuffled(3), "function": lambda: by_epoch}.items():
        run(make(), f"{name} whole", out=tmp_path / name / "whole")
        for step in (2, 5):
            with pytest.raises(RuntimeError, match="enough"):
                run(make(), f"{name} stopped", progress=stopping(step))
        done = run(make(), f"{name} stopped", out=tmp_path / name / "stopped")
        assert done.resumed_from == 4
        assert values(tmp_path / name / "whole") == values(tmp_path / name / "stopped")
    with pytest.raises(RuntimeError, match="enough"):
        run(shuffled(None), "unseeded", progress=stopping(3))
    assert words(run, UsageError, shuffled(None), "unseeded") == (
        "The dataset does not give the same 2 batches again that the interrupted run consumed in epoch 1, so the run "
        "cannot go on exactly. Give shuffle() a seed, or pass a function from the number of an epoch to its dataset"
    )
    assert words(run, UsageError, shuffled(0).repeat(), "endless") == (
        "The dataset never ends, so it has no epochs. Cut it with: dataset.take(STEPS)"
    )
    with pytest.raises(KeyboardInterrupt) as stop:
        run(data, "interrupted", batch=8, progress=lambda tick: os.kill(os.getpid(), signal.SIGINT))
    newest = tmp_path / "interrupted" / "checkpoint-000001"
    assert str(stop.value) == f"kept step 1 in '{newest}'; the same command goes on from there"
    assert words(run, UsageError, data, "interrupted", batch=4) == (
        f"The checkpoints in '{tmp_path / 'interrupted'}' belong to a run with 'batch' 8, and now it is 4. Give the "
        "same again to go on, or another folder to start anew"
    )


@pytest.mark.tf
def test_what_is_refused(frozen, data, tmp_path):
    def train(dataset=data, **more):
        return graphfreeze.train(frozen, dataset, **{"out": tmp_path / "o", "loss": SPARSE, **more})

    assert words(train, UsageError, phases=[("head", 2)]) == (
        "The model has no phase 'head': it carries no phases. Give a number of epochs only"
    )
    broken = {**data, "x": data["x"] * np.float32(np.nan)}
    assert words(train, UsageError, dataset=broken) == (
        "The loss is nan at step 1 (batch 1 of epoch 1), so training stopped before a checkpoint could keep that. Look "
        "for such numbers in the data, lower the learning rate, or clip: --optimizer 'adamw(learning_rate=1e-4, "
        "clipnorm=1.0)'"
    )
    assert not (tmp_path / "o").exists()


def test_phases_as_text():
    assert parse_phases("head:3, all:10") == (("head", 3), ("all", 10))
    assert parse_phases("10") == ((None, 10),)
    assert plan_of(None) == ((None, 1),)
    for text in ("head", "head:x", ":3", "3,4", ""):
        assert words(parse_phases, UsageError, text) == (
            f"'{text}' does not say which phases to train for how long. Write for example 'head:3,all:10', or '10' for "
            "a model without phases"
        )
    assert words(parse_phases, UsageError, "head:0") == "Phase 'head' needs at least 1 epoch, found 0"


def test_nothing_would_be_left(data):
    assert words(graphfreeze.train, UsageError, MODELS / "mlp", data) == (
        "The trained model would be lost. Say where it is written with out, or give a checkpoint_dir"
    )


def test_a_checkpoint_is_there_whole_or_not_at_all(tmp_path):
    store = Store(tmp_path / "s", {"model": "a", "phases": [[None, 3]]}, keep=2)

    def fail(prefix):
        prefix.with_suffix(".index").write_text("half")
        raise OSError(28, "No space left on device")

    with store.held():
        assert store.latest() is None
        for step in range(3):
            store.save({"step": step}, lambda prefix: prefix.with_suffix(".index").write_text("whole"))
        with pytest.raises(InputOutputError, match="No space left on device"):
            store.save({"step": 3}, fail)
        assert store.latest()[1] == {"step": 2}
        names = sorted(p.name for p in (tmp_path / "s").iterdir())
        assert names == [".lock", "checkpoint-000002", "checkpoint-000003"]
        with pytest.raises(UsageError, match=r"^Another run is writing its checkpoints to "):
            Store(tmp_path / "s", {}, 1).held().__enter__()
    other = Store(tmp_path / "s", {"model": "b", "phases": [[None, 3]]}, keep=2)
    assert "belong to a run with another model. Give" in words(other.latest, UsageError)
    other = Store(tmp_path / "s", {"model": "a", "phases": [["head", 4]]}, keep=2)
    assert "belong to a run with 'phases' '3', and now it is 'head:4'. Give" in words(other.latest, UsageError)
    (tmp_path / "s" / "checkpoint-000003" / "state.json").write_text("{")
    assert words(store.latest, InputOutputError) == (
        f"The state of the checkpoint '{tmp_path / 's' / 'checkpoint-000003'}' is damaged. Remove that folder to go on "
        "from the one before"
    )


@pytest.mark.tf
def test_the_command(frozen, data, tmp_path):
    np.savez(tmp_path / "data.npz", **data)
    command = [sys.executable, "-m", "graphfreeze", "train", str(frozen), "--data", str(tmp_path / "data.npz")]
    command += ["--loss", SPARSE, "--phases", "2", "--batch", "8", "--out", str(tmp_path / "out"), "--json"]
    command += ["--checkpoint-dir", str(tmp_path / "c"), "--logdir", str(tmp_path / "log")]
    # As a user has it: what the variable says of TensorFlow's own messages wins.
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["command"], found["steps"], len(found["epochs"])) == ("train", 6, 2)
    assert done.stderr.splitlines() == [
        "starting TensorFlow, which loads and runs the model",
        f"wrote {tmp_path / 'out'}",
    ]
    assert any((tmp_path / "log").iterdir())
    assert values(tmp_path / "out") != values(frozen)
