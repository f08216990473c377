"""Batch norms of which gamma and beta are frozen, by each ``--batch-norm``.

The oracle is the fixture's own Python: what is frozen is put back by hand after every step, and for ``inference`` its
norms are written with the stored statistics.
"""

import sys

import numpy as np
import pytest

import graphfreeze
from graphfreeze.errors import UnsupportedModelError
from tests.conftest import MODELS

pytestmark = pytest.mark.tf
sys.path.insert(0, str(MODELS.parent))

STEPS = 20
OPTIONS = ("freeze-stats", "update", "inference")
STATISTICS = ("mean", "variance")
ALL = ("kernel", "gamma", "beta", "head", *STATISTICS)


def oracle_of(inference):
    import tensorflow as tf
    from recipes.common import Numbers
    from recipes.norms import NormSteps

    model = NormSteps(Numbers("norm_steps"))
    model.inference = inference
    tf.train.Checkpoint(root=model).read(str(MODELS / "norm_steps/variables/variables")).expect_partial()
    return model


def batch(step):
    import tensorflow as tf

    return tf.constant(np.random.default_rng(step).standard_normal((6, 4)).astype(np.float32))


@pytest.mark.parametrize("function", ["train_fused", "train_plain"])
@pytest.mark.parametrize("option", OPTIONS)
def test_own_steps_follow_the_oracle(function, option, tmp_path):
    import tensorflow as tf

    graphfreeze.rewrite(MODELS / "norm_steps", tmp_path / "out", freeze=["gamma", "beta"], batch_norm=option)
    held, oracle = tf.saved_model.load(str(tmp_path / "out")), oracle_of(option == "inference")
    frozen = ["gamma", "beta", *(STATISTICS if option != "update" else ())]
    before = {name: getattr(oracle, name).numpy() for name in ALL}
    for step in range(STEPS):
        loss, expected = getattr(held, function)(batch(step)), getattr(oracle, function)(batch(step))
        for name in frozen:
            getattr(oracle, name).assign(before[name])
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for name in ALL:
        after, expected = getattr(held, name).numpy(), getattr(oracle, name).numpy()
        if name in frozen:
            assert after.tobytes() == before[name].tobytes(), name
        else:
            assert (expected != before[name]).all(), name
            atol = 16 * np.finfo(np.float32).eps * np.abs(expected).max()
            np.testing.assert_allclose(after, expected, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("held", ["[:1]", "[[0, 2]]", ""])
def test_selected_statistics_and_ranges_keep_their_frozen_elements(held, tmp_path):
    """An average, and the range of a fake quantisation, are frozen by selectors alone; the rest goes on moving."""
    import tensorflow as tf

    chosen = [f"mean{held}", f"variance{held}", "low"]
    graphfreeze.rewrite(MODELS / "norm_steps", tmp_path / "out", freeze=chosen)
    loaded, oracle = tf.saved_model.load(str(tmp_path / "out")), oracle_of(False)
    index = {"[:1]": np.s_[:1], "[[0, 2]]": np.s_[[0, 2]], "": np.s_[:]}[held]
    before = {n: getattr(oracle, n).numpy() for n in (*STATISTICS, "low", "high")}
    for step in range(5):
        for function in ("train_fused", "train_plain", "quantize"):
            made, expected = getattr(loaded, function)(batch(step)), getattr(oracle, function)(batch(step))
            if function != "quantize":
                np.testing.assert_allclose(made, expected, rtol=1e-5)
            oracle.low.assign(before["low"])
            for name in STATISTICS:
                value = getattr(oracle, name).numpy()
                value[index] = before[name][index]
                getattr(oracle, name).assign(value)
    for name in (*STATISTICS, "low", "high"):
        np.testing.assert_allclose(getattr(loaded, name), getattr(oracle, name), rtol=1e-6)
        assert (getattr(loaded, name).numpy() != before[name]).any() == (
            name == "high" or (name != "low" and held != "")
        )
    for name in STATISTICS:
        assert getattr(loaded, name).numpy()[index].tobytes() == before[name][index].tobytes()
    assert loaded.low.numpy() == before["low"]


@pytest.fixture(scope="module")
def keras_models(tmp_path_factory):
    """Builds each export once."""
    from recipes import norms

    built = {}

    def build(name):
        if name not in built:
            built[name] = tmp_path_factory.mktemp(name) / "model"
            getattr(norms, name)(built[name])
        return built[name]

    return build


def calls(name, loaded):
    """(training mode, inference mode) of an export."""
    if name == "keras_norm":
        return loaded.train, loaded.serve
    return (lambda x: loaded(x, training=True)), (lambda x: loaded(x, training=False))


def images(step=0):
    import tensorflow as tf

    return tf.constant(np.random.default_rng(step).standard_normal((5, 4, 4, 2)).astype(np.float32))


NORMS = {"keras_norm": ("norm", "shift"), "tf_keras_norm": ("fused", "plain")}


@pytest.mark.parametrize("name", NORMS)
def test_inference_makes_the_training_mode_of_an_export_its_inference_mode(name, keras_models, tmp_path):
    """Outputs and gradients: bit for bit those of the source with ``training=False``, and nothing moves."""
    import tensorflow as tf

    source, out = keras_models(name), tmp_path / "out"
    first, second = NORMS[name]
    plan = graphfreeze.rewrite(source, out, freeze=[f"{{{first},{second}}}/{{gamma,beta}}"], batch_norm="inference")
    assert [n.choice for n in plan.meta_graphs[0].batch_norms] == ["inference"] * 2
    plain, held = tf.saved_model.load(str(source)), tf.saved_model.load(str(out))
    before = {v.name: v.numpy() for v in held.variables if "moving" in v.name}
    assert len(before) == 4

    def run(call, loaded):
        weights = [v for v in loaded.variables if "kernel" in v.name]
        with tf.GradientTape() as tape:
            y = call(images())
            loss = tf.reduce_sum(y**3)
        return [y.numpy(), *(g.numpy() for g in tape.gradient(loss, weights))]

    for actual, wanted in zip(run(calls(name, held)[0], held), run(calls(name, plain)[1], plain), strict=True):
        assert actual.tobytes() == wanted.tobytes()
    for v in held.variables:
        if v.name in before:
            assert v.numpy().tobytes() == before[v.name].tobytes()


@pytest.mark.parametrize("name", NORMS)
def test_statistics_are_frozen_with_the_norm_that_is_frozen(name, keras_models, tmp_path):
    """The other one moves its own, and training mode gives what the source gives."""
    import tensorflow as tf

    source, out = keras_models(name), tmp_path / "out"
    first, second = NORMS[name]
    graphfreeze.rewrite(source, out, freeze=[f"{first}/{{gamma,beta}}"])
    plain, held = tf.saved_model.load(str(source)), tf.saved_model.load(str(out))
    before = {v.name: v.numpy() for v in held.variables if "moving" in v.name}
    for step in range(3):
        np.testing.assert_array_equal(calls(name, held)[0](images(step)), calls(name, plain)[0](images(step)))
    for v in held.variables:
        if v.name in before:
            assert (v.numpy().tobytes() == before[v.name].tobytes()) == v.name.startswith(first), v.name
    moved = {v.name: v.numpy() for v in plain.variables if second in v.name}
    for v in held.variables:
        if second in v.name:
            np.testing.assert_array_equal(v.numpy(), moved[v.name])


@pytest.mark.parametrize("name", ["norm_steps", *NORMS])
def test_finalize_undoes_inference_before_and_after_saving_again(name, keras_models, tmp_path):
    import tensorflow as tf

    source = MODELS / name if name == "norm_steps" else keras_models(name)
    graphfreeze.rewrite(source, tmp_path / "out", freeze=["**/{gamma,beta}"], batch_norm="inference")
    graphfreeze.finalize(tmp_path / "out", tmp_path / "plain")
    assert graphfreeze.diff(source, tmp_path / "plain").changes == ()
    for model, target in ((source, "source again"), (tmp_path / "out", "again")):
        tf.saved_model.save(tf.saved_model.load(str(model)), str(tmp_path / target))
    graphfreeze.finalize(tmp_path / "again", tmp_path / "plain again")
    found = graphfreeze.diff(tmp_path / "source again", tmp_path / "plain again")
    assert (found.changes, found.values) == ((), ())


def test_inference_lasts_where_another_freeze_is_lifted_or_added(tmp_path):
    """A part of a freeze that is kept is the freeze that was made for that part alone."""
    import tensorflow as tf

    source = MODELS / "norm_steps"
    graphfreeze.rewrite(source, tmp_path / "both", freeze=["gamma", "beta", "head"], batch_norm="inference")
    graphfreeze.rewrite(source, tmp_path / "one", freeze=["gamma", "beta"], batch_norm="inference")
    graphfreeze.finalize(tmp_path / "both", tmp_path / "lifted", unfreeze="head")
    graphfreeze.rewrite(tmp_path / "one", tmp_path / "added", freeze="head", add=True)
    losses = {}
    for name in ("both", "one", "lifted", "added"):
        loaded = tf.saved_model.load(str(tmp_path / name))
        losses[name] = [loaded.train_plain(batch(i)).numpy() for i in range(3)]
    assert losses["lifted"] == losses["one"] != losses["both"] == losses["added"]


def test_a_gradient_that_is_not_understood_is_refused(tmp_path):
    import tensorflow as tf

    class Odd(tf.Module):
        """Without beta the arithmetic is another, whose gradients cannot be told apart."""

        def __init__(self):
            super().__init__()
            self.kernel = tf.Variable([[1.0, 2.0], [3.0, -1.0]], name="kernel")
            self.gamma = tf.Variable([1.0, 2.0], name="gamma")
            self.mean = tf.Variable([0.0, 0.0], name="mean", trainable=False)
            self.variance = tf.Variable([1.0, 1.0], name="variance", trainable=False)

        @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x")])
        def train(self, x):
            with tf.GradientTape() as tape:
                h = tf.matmul(x, self.kernel)
                mean, variance = tf.nn.moments(h, [0])
                y = tf.nn.batch_normalization(h, mean, variance, None, self.gamma, 1e-3)
                loss = tf.reduce_sum(y**3)
            self.kernel.assign_sub(0.1 * tape.gradient(loss, self.kernel))
            self.mean.assign_sub(0.1 * (self.mean - mean))
            self.variance.assign_sub(0.1 * (self.variance - variance))
            return loss

    tf.saved_model.save(Odd(), str(tmp_path / "odd"))
    with pytest.raises(UnsupportedModelError) as raised:
        graphfreeze.plan(tmp_path / "odd", freeze="gamma", batch_norm="inference")
    words = str(raised.value)
    assert words.startswith(
        "Cannot give batch norm 'batchnorm/add_1' (batch_normalization) in function '__inference_train_"
    )
    assert words.endswith(
        "the stored statistics 'mean' and 'variance': the gradient through the batch's statistics, which the graph "
        "computes, is not understood. Use --batch-norm freeze-stats, which leaves the op as it is"
    )
    graphfreeze.rewrite(tmp_path / "odd", tmp_path / "out", freeze="gamma")
