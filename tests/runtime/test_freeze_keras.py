"""A frozen Keras model is a Keras model: called, compiled, trained, saved and watched as the one it was made from."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import graphfreeze
from graphfreeze.errors import NoMatchError, UnsupportedModelError, UsageError
from tests.helpers.compare import assert_bits_equal
from tests.runtime.keras_models import EXAMPLES, IDS, Example, Subclassed, X, Y, make

pytestmark = pytest.mark.tf


@pytest.fixture(autouse=True)
def as_written():
    """Graphs run op by op as they are written: TensorFlow's optimizer fuses ops of a model and of its copy unlike."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def flat(structure):
    return [np.asarray(t) for t in keras.tree.flatten(structure)]


def quietly(call, *arguments, **options):
    """The call's result and the texts of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = call(*arguments, **options)
    return found, [str(w.message) for w in caught if w.filename == __file__]


def small(*more, **options):
    """Two dense layers."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(2)
    hidden = keras.layers.Dense(5, activation="relu", name="hidden", **options)
    return keras.Sequential([keras.Input((4,)), hidden, *more, keras.layers.Dense(3, name="head")], name="net")


def assert_called_alike(example: Example, frozen):
    """Outputs, their structure and masks, and the losses of layers, in inference mode; both as graphs."""

    def run(model):
        def call(given):
            outputs = model(given, training=False)
            masks = [getattr(t, "_keras_mask", None) for t in keras.tree.flatten(outputs)]
            return outputs, [m for m in masks if m is not None], model.losses

        return tf.function(call)(keras.tree.map_structure(tf.constant, example.x))

    expected, found = run(example.model), run(frozen)
    keras.tree.assert_same_structure(found, expected)
    for one, other in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
        assert_bits_equal(one, other)


@pytest.mark.filterwarnings("ignore:Python methods of:UserWarning")
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_kind_of_model(name):
    """Called, evaluated and trained alike; what is frozen stays, the rest comes back into the source."""
    example = make(name)
    model = example.model
    frozen = graphfreeze.freeze(model, freeze=example.freeze)
    assert isinstance(frozen, keras.Model)
    assert frozen.name == model.name
    assert not hasattr(model, "output_names") or frozen.output_names == model.output_names
    assert_called_alike(example, frozen)
    before = {v.path: v.numpy() for v in model.variables}
    # Eager steps, because tracing is what takes time; other tests train in graphs.
    model.compile("adam", example.loss, run_eagerly=True)
    expected = model.evaluate(example.x, example.y, verbose=0, return_dict=True)
    frozen.compile("adam", example.loss, run_eagerly=True)
    assert frozen.evaluate(example.x, example.y, verbose=0, return_dict=True) == expected
    frozen.fit(example.x, example.y, epochs=1, batch_size=8, verbose=0)
    for path in [p for p in before if p.endswith(("kernel", "embeddings"))]:
        moved = graphfreeze.value(frozen, path) != before[path]
        rows = 5 if "emb" in path and name == "masked" else 2 if "emb" in path else 1
        if path.endswith("embeddings") == ("embeddings" in example.freeze) and "one/" not in path:
            assert not moved[:rows].any()
            assert moved[rows:].any()
    done = graphfreeze.finalize_into(frozen)
    assert done.model is model
    assert set(done.variables) >= {v.path for v in model.trainable_variables if v.path.endswith("bias")}
    assert_called_alike(example, frozen)


def test_variables_have_keras_paths_and_the_flags_that_keras_trains_by():
    example = make("nested")
    frozen = graphfreeze.freeze(example.model, freeze="base/dense/kernel[:, 1:]")
    part = {"base/dense/kernel": "base/dense/kernel/graphfreeze/trainable"}
    assert [v.path for v in frozen.trainable_variables] == [
        part.get(v.path, v.path) for v in example.model.trainable_variables
    ]
    assert {v.path for v in frozen.non_trainable_variables} == {
        "base/one/kernel",
        "base/one/bias",
        "base/norm/moving_mean",
        "base/norm/moving_variance",
        "base/dense/kernel",
    }
    assert graphfreeze.trainable_variables(frozen) == frozen.trainable_variables
    assert not {id(v.value) for v in frozen.variables} & {id(v.value) for v in example.model.variables}


def test_values_are_those_of_now_and_the_source_is_left_alone():
    model = small()
    model.get_layer("hidden").kernel.assign(np.full((4, 5), 7, np.float32))
    frozen = graphfreeze.freeze(model, freeze="net/hidden/kernel[:2]")
    assert_bits_equal(graphfreeze.value(frozen, "net/hidden/kernel"), np.full((4, 5), 7, np.float32))
    frozen.compile("sgd", "mse")
    frozen.fit(X, Y, verbose=0)
    assert_bits_equal(model.get_layer("hidden").kernel.numpy(), np.full((4, 5), 7, np.float32))
    assert model.get_layer("hidden").kernel.trainable


def test_modes():
    """Dropout only in training, another mask at each call; statistics move in training mode only."""
    model = small(keras.layers.Dropout(0.5, seed=1), keras.layers.BatchNormalization(name="norm"))
    frozen = graphfreeze.freeze(model, freeze="net/head/kernel[:1]")
    quiet = flat(frozen(X))
    assert_bits_equal(frozen(X, training=False), quiet[0])
    mean = graphfreeze.value(frozen, "net/norm/moving_mean")
    assert (mean == 0).all()
    one, other = flat([frozen(X, training=True), frozen(X, training=True)])
    assert not np.array_equal(one, other)
    assert (graphfreeze.value(frozen, "net/norm/moving_mean") != 0).any()
    assert (model.get_layer("norm").moving_mean.numpy() == 0).all()


def test_callbacks_and_weights(tmp_path):
    frozen = graphfreeze.freeze(small(), freeze="net/hidden/kernel[:2]")
    frozen.compile("adam", "mse", metrics=["mae"])
    file = tmp_path / "best.weights.h5"
    stop = keras.callbacks.EarlyStopping("loss", patience=0, mode="max", restore_best_weights=True)
    save = keras.callbacks.ModelCheckpoint(str(file), "loss", save_best_only=True, save_weights_only=True, mode="max")
    frozen.fit(X, Y, epochs=4, batch_size=8, verbose=0, callbacks=[stop, save])
    assert stop.best_epoch == 0
    restored = frozen.get_weights()
    for variable in frozen.trainable_variables:
        variable.assign(variable + 1.0)
    frozen.load_weights(file)
    for one, other in zip(frozen.get_weights(), restored, strict=True):
        assert_bits_equal(one, other)
    again = graphfreeze.freeze(small(), freeze="net/hidden/kernel[:2]")
    again.load_weights(file)
    assert_bits_equal(again(X), frozen(X))
    other = graphfreeze.freeze(small(), freeze="net/head/kernel[:2]")
    with pytest.raises(
        ValueError, match="The weights are not those of this frozen model: it has 5 variables, the file 5"
    ):
        other.load_weights(file)


def test_a_loop_of_ones_own():
    frozen = graphfreeze.freeze(small(kernel_regularizer="l2"), freeze="net/hidden/kernel[:2]")
    before = graphfreeze.value(frozen, "net/hidden/kernel")
    variables = graphfreeze.trainable_variables(frozen)
    optimizer = keras.optimizers.AdamW(0.01)
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((frozen(X, training=True) - Y) ** 2) + tf.add_n(frozen.losses)
        optimizer.apply(tape.gradient(loss, variables), variables)
    moved = graphfreeze.value(frozen, "net/hidden/kernel") != before
    assert (not moved[:2].any(), moved[2:].all()) == (True, True)


def test_constraints_stay_with_what_trains_as_a_whole():
    model = small(kernel_constraint="non_neg")
    frozen = graphfreeze.freeze(model, freeze="net/head/kernel[:1]")
    frozen.compile(keras.optimizers.SGD(0.1), "mse")
    frozen.fit(X, Y, verbose=0)
    assert (graphfreeze.value(frozen, "net/hidden/kernel") >= 0).all()
    _, said = quietly(graphfreeze.freeze, model, freeze="net/hidden/kernel[:2]")
    assert len(said) == 1
    assert said[0] == (
        "The constraint NonNeg of 'net/hidden/kernel' is not in the frozen model: Keras applies it to a whole "
        "variable, and part of this one is frozen. Apply it in training to what graphfreeze.value gives, or freeze all "
        "of it"
    )


def test_export_and_finalize(tmp_path):
    """What Keras exports of the frozen model is a rewritten SavedModel."""
    frozen = graphfreeze.freeze(small(), freeze="net/hidden/kernel[:2]")
    frozen.export(str(tmp_path / "out"), verbose=False)
    done = graphfreeze.finalize(tmp_path / "out", tmp_path / "plain")
    assert done.variables == ("net/hidden/kernel",)
    plain = tf.saved_model.load(str(tmp_path / "plain"))
    assert_bits_equal(plain.serve(X), frozen(X))


def test_a_frozen_model_has_no_config(tmp_path):
    frozen = graphfreeze.freeze(small(), freeze="net/hidden/kernel[:2]")
    with pytest.raises(UsageError, match=r"runs a graph and has no config, so it cannot be saved as .keras or cloned"):
        frozen.save(tmp_path / "model.keras")


class Pair(keras.Model):
    """Two arguments, one of integers."""

    def __init__(self):
        super().__init__(name="pair")
        self.table = keras.layers.Embedding(9, 4, name="table")
        self.head = keras.layers.Dense(3, name="head")

    def call(self, ids, scale):
        return {"z": self.head(keras.ops.mean(self.table(ids), axis=1) * scale)}


def test_arguments_of_a_subclassed_model():
    keras.utils.clear_session()
    model = Pair()
    ids, scale = tf.constant(IDS), tf.ones((16, 1))
    expected = model(ids, scale)["z"]
    with pytest.raises(UsageError, match=r"cannot be traced for inputs TensorSpec.*Pass inputs= with an example batch"):
        graphfreeze.freeze(model, freeze="pair/table/**[:3]")
    frozen = graphfreeze.freeze(model, freeze="pair/table/embeddings[:3]", inputs=(ids, scale))
    assert_bits_equal(frozen(ids, scale=scale)["z"], expected)
    assert_bits_equal(frozen(scale=scale[:2], ids=IDS[:2].astype(np.int64))["z"], model(ids[:2], scale[:2])["z"])
    with pytest.raises(TypeError, match="missing a required argument: 'scale'"):
        frozen(ids)
    with pytest.raises(UsageError, match=r"was traced for an input of shape \(None, 5\) and dtype int32, found shape "):
        frozen(ids[:, :2], scale)
    with pytest.raises(UsageError, match="found shape \\(16, 5\\) and dtype float32"):
        frozen(tf.cast(ids, tf.float32), scale)


class Many(keras.Model):
    """Any number of arguments, and one that has a default."""

    def __init__(self):
        super().__init__(name="many")
        self.head = keras.layers.Dense(3, name="head")
        self.head.build((None, 4))

    def call(self, *inputs, shift=None):
        return self.head(sum(inputs)) + (0.0 if shift is None else shift)


@pytest.mark.filterwarnings("ignore:.*build:UserWarning")
def test_arguments_that_were_not_traced():
    keras.utils.clear_session()
    model = Many()
    expected = model(X, X)
    frozen = graphfreeze.freeze(model, freeze="**/kernel[:1]", inputs=(X, X))
    assert_bits_equal(frozen(X, X), expected)
    for arguments, options, found in (((X,), {}, "'inputs'"), ((X, X), {"shift": X[:, :3]}, "'inputs', 'shift'")):
        with pytest.raises(
            UsageError, match=f"arguments that it was traced for, 'inputs', found {found}. Freeze again"
        ):
            frozen(*arguments, **options)


def test_what_stays_behind_is_named():
    keras.utils.clear_session()
    model = Subclassed()
    model(X)
    _, said = quietly(graphfreeze.freeze, model, freeze="net/hidden/kernel[:1]")
    assert len(said) == 1
    assert said[0] == (
        "Python methods of 'Subclassed' are not in the frozen model: 'features'. It is trained by Keras's own steps; "
        "what else they do, do outside of the model"
    )


def test_frozen_again():
    """A second freeze replaces the first, or extends it; values go back one step at a time."""
    model = small()
    first = graphfreeze.freeze(model, freeze="net/hidden/kernel[:2]")
    first.compile("sgd", "mse")
    first.fit(X, Y, verbose=0)
    second = graphfreeze.freeze(first, freeze="net/head/kernel[:2]", add=True)
    assert_bits_equal(second(X), first(X))
    assert [v.path for v in second.trainable_variables][::2] == [
        "net/hidden/kernel/graphfreeze/trainable",
        "net/head/kernel/graphfreeze/trainable",
    ]
    second.compile("sgd", "mse")
    second.fit(X, Y, verbose=0)
    assert graphfreeze.finalize_into(second).model is first
    assert_bits_equal(second(X), first(X))
    assert not np.array_equal(model(X), first(X))
    graphfreeze.finalize_into(first)
    assert_bits_equal(model(X), second(X))
    replaced = graphfreeze.freeze(second, freeze="net/head/bias[:1]")
    assert [v.path for v in replaced.non_trainable_variables] == ["net/head/bias"]


def test_a_layer_that_normalises():
    """Frozen as a whole it stays, statistics and all; one that Keras does not train moves nothing either."""
    model = small(keras.layers.BatchNormalization(name="norm"))
    before = {v.path: v.numpy() for v in model.get_layer("norm").variables}
    frozen = graphfreeze.freeze(model, freeze="net/norm/**")
    assert not np.array_equal(frozen(X, training=True), frozen(X))
    frozen.compile("sgd", "mse")
    frozen.fit(X, Y, verbose=0)
    model.get_layer("norm").trainable = False
    other = graphfreeze.freeze(model, freeze="net/hidden/kernel[:1]")
    assert_bits_equal(other(X, training=True), other(X))
    other.compile("sgd", "mse")
    other.fit(X, Y, verbose=0)
    for path, value in before.items():
        assert_bits_equal(graphfreeze.value(frozen, path), value)
        assert_bits_equal(graphfreeze.value(other, path), value)


def test_refused_models():
    keras.utils.clear_session()
    with pytest.raises(
        UsageError, match=r"The model 'empty' was never called, so its inputs are unknown. Call it once"
    ):
        graphfreeze.freeze(keras.Sequential([keras.layers.Dense(2)], name="empty"), freeze="**")
    with pytest.raises(UsageError, match=r"inputs= is for subclassed models; the model 'net' says its inputs itself"):
        graphfreeze.freeze(small(), freeze="**", inputs=X)
    with pytest.raises(NoMatchError, match=r"Did you mean 'net/head/kernel'.*The model has 4 variables: 'net/hidden/k"):
        graphfreeze.freeze(small(), freeze="net/head/kernal")
    optional = keras.Input((4,), name="maybe", optional=True)
    with pytest.raises(UnsupportedModelError, match="The input 'maybe' is optional"):
        graphfreeze.freeze(keras.Model(optional, keras.layers.Dense(2)(optional)), freeze="**/kernel[:1]")
