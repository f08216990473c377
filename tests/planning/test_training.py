"""Can this be trained, and if not, why: told from the graph, and checked against what TensorFlow does."""

from contextlib import suppress

import pytest

import graphfreeze
from graphfreeze.planning.records import FunctionTraining
from graphfreeze.report.training import render_training
from tests.conftest import MODELS, OBJECT_MODELS
from tests.helpers.shared_models import shared_model

CONSTANTS = "it has no variables: whatever it learned is constants of the graph"
SESSION = "it has ref variables and trains only in a Session (tf.compat.v1.saved_model.load)"
UNMARKED = "no variable is marked as trainable; rewrite with --train NAME --enable turns one on"


def training(path, **options):
    (meta,) = graphfreeze.inspect(path, **options).meta_graphs
    return meta.training


def shown(path, width=100):
    (meta,) = graphfreeze.inspect(path).meta_graphs
    return [line.plain for line in render_training(meta, width)]


def test_a_model_that_trains():
    found = training(MODELS / "mlp")
    assert (found.trains, found.why, found.weights) == (True, "", 6)
    assert FunctionTraining("hidden", 4, 4) in [f.__class__(f.name, f.weights, f.read, f.why) for f in found.functions]
    assert shown(MODELS / "mlp") == [
        "can be trained: 6 weights through '__call__', 'hidden', 'scores', 'signature serving_default',",
        "    'signature hidden' and 1 more",
    ]


def test_functions_that_train_nothing_are_listed_with_the_reason():
    assert shown(MODELS / "datasets")[-2:] == [
        "  not through 'mapped', 'reduced', 'signature reduced', 'signature mapped': no float output depends",
        "      on a trainable variable",
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mlnet-model_types_test", f"cannot be trained: {CONSTANTS}"),
        ("mlnet-mnist_lr_model", f"can be trained: 2 weights through 'signature serving_default'; {SESSION}"),
    ],
)
def test_models_of_others(name, words):
    assert " ".join(line.strip() for line in shown(shared_model(name))) == words


def test_a_rewritten_model_says_how_it_was_frozen(tmp_path):
    graphfreeze.rewrite(MODELS / "mlp", tmp_path / "out", freeze=["dense_0/*", "out/kernel[0]"])
    (meta,) = graphfreeze.inspect(tmp_path / "out").meta_graphs
    assert (meta.freeze.version, meta.freeze.format) == (graphfreeze.__version__, 1)
    assert meta.freeze.source == graphfreeze.inspect(MODELS / "mlp").digest
    assert [r["selector"] for r in meta.freeze.spec["rules"]] == ["dense_0/*", "out/kernel[0]"]
    assert (meta.training.trains, meta.training.weights) == (True, 4)
    assert shown(tmp_path / "out")[-1] == (
        f"frozen by graphfreeze {graphfreeze.__version__}, format 1: freeze 'dense_0/*', freeze 'out/kernel[0]'"
    )


def test_json_has_both_answers(tmp_path):
    graphfreeze.rewrite(MODELS / "mlp", tmp_path / "out", freeze="dense_0/*")
    (data,) = graphfreeze.inspect(tmp_path / "out").to_dict()["meta_graphs"]
    assert data["freeze"]["format"] == 1
    assert data["training"]["trains"] is True
    assert data["training"]["ops_without_gradient"] is None
    assert data["training"]["functions"][0] == {"name": "__call__", "weights": 4, "read": 4, "why": ""}
    (data,) = graphfreeze.plan(MODELS / "mlp", freeze="dense_0/*").to_dict()["meta_graphs"]
    assert (data["freeze"], data["training"]) == (None, None)


def save(folder, make):
    import tensorflow as tf

    tf.saved_model.save(make(tf), str(folder))
    return folder


@pytest.mark.tf
def test_why_a_model_cannot_be_trained(tmp_path):
    def stopped(tf):
        model = tf.Module()
        model.w = tf.Variable([1.0, 2.0], name="w")
        model.f = tf.function(lambda: tf.reduce_sum(tf.stop_gradient(model.w)), input_signature=[])
        return model

    def integers(tf):
        model = tf.Module()
        model.w = tf.Variable([1.0, 2.0], name="w")
        model.f = tf.function(lambda: tf.argmax(model.w), input_signature=[])
        return model

    def untrainable(tf):
        model = tf.Module()
        model.w = tf.Variable([1.0, 2.0], name="w", trainable=False)
        model.f = tf.function(lambda: model.w * 2, input_signature=[])
        return model

    def silent(tf):
        model = tf.Module()
        model.w = tf.Variable([1.0, 2.0], name="w")
        return model

    words = {
        stopped: "cannot be trained: StopGradient 'StopGradient' is in the way",
        integers: "cannot be trained: no function leads from a trainable variable to a float output",
        untrainable: f"cannot be trained: {UNMARKED}",
        silent: "cannot be trained: it has no functions and no signatures: nothing computes with its variables",
    }
    for make, expected in words.items():
        assert shown(save(tmp_path / make.__name__, make), width=None) == [expected]


@pytest.mark.tf
def test_signatures_only(tmp_path):
    import tensorflow as tf

    model = tf.train.Checkpoint(w=tf.Variable([1.0, 2.0], name="w"))
    run = tf.function(lambda x: {"y": model.w * x}, input_signature=[tf.TensorSpec([2], name="x")])
    tf.saved_model.save(model, str(tmp_path / "m"), signatures={"serving_default": run})
    note = "only through its signatures: loaded.signatures[NAME](...)"
    assert shown(tmp_path / "m", width=None) == [
        f"can be trained: 1 weight through 'signature serving_default'; {note}"
    ]


@pytest.mark.tf
def test_deep_asks_tensorflow_for_ops_without_a_gradient(tmp_path):
    def rounded(tf):
        model = tf.Module()
        model.w = tf.Variable([1.0, 2.0], name="w")
        model.f = tf.function(lambda: tf.raw_ops.NextAfter(x1=model.w, x2=model.w + 1.0), input_signature=[])
        model.g = tf.function(lambda: tf.raw_ops.Igammac(a=model.w, x=model.w), input_signature=[])
        model.h = tf.function(
            lambda: tf.raw_ops.Bincount(arr=tf.constant([0, 1]), size=2, weights=model.w), input_signature=[]
        )
        return model

    found = training(save(tmp_path / "m", rounded), deep=True)
    assert found.without_gradient == ("Bincount",)
    assert training(MODELS / "mlp", deep=True).without_gradient == ()


# Reloaded functions whose gradient TensorFlow cannot give, though the graph has the path.
BROKEN = {"cond_in_loop": {"__call__", "signature serving_default"}}


@pytest.mark.tf
@pytest.mark.parametrize("name", OBJECT_MODELS)
def test_paths_are_what_a_tape_finds(name):
    import tensorflow as tf

    from tests.helpers.functions import functions_of, inputs_for, signatures_of

    loaded = tf.saved_model.load(str(MODELS / name))
    told = {f.name: f for f in training(MODELS / name).functions}
    for label, function in {**functions_of(loaded), **signatures_of(loaded)}.items():
        path = label.rsplit("[", 1)[0]
        if path in BROKEN.get(name, ()) or path not in told:
            continue
        variables = [v for v in function.graph.trainable_variables if v.dtype.is_floating or v.dtype.is_complex]
        args, kwargs = inputs_for(function)
        gradients = [None] * len(variables)
        with suppress(LookupError), tf.GradientTape() as tape:  # data functions have no gradient
            outputs = [y for y in tf.nest.flatten(function(*args, **kwargs)) if y is not None]
            outputs = [y for y in outputs if y.dtype.is_floating or y.dtype.is_complex]
            gradients = tape.gradient(outputs, variables) if outputs else gradients
        reached = sum(g is not None for g in gradients)
        assert told[path].weights == reached, (label, [v.name for v in variables], told[path])
