"""Every float and complex type, and mixed precision: merged before the Cast, sparse where it was sparse."""

import numpy as np
import pytest

import graphfreeze
from tests.conftest import MODELS
from tests.end_to_end import cases

pytestmark = pytest.mark.tf

TYPES = ["half", "brain", "single", "double", "complex_single", "complex_double"]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(("index", "strategy"), [("[1:]", "split"), ("[:, ::2]", "mask"), ("[[0, 2], [1, 3]]", "live")])
def test_one_variable_of_each_type(name, index, strategy, tmp_path):
    from tests.end_to_end.runs import check_training
    from tests.helpers.models import FIXTURES

    original, out = MODELS / "dtypes", tmp_path / "out"
    plan = graphfreeze.rewrite(original, out, freeze=f"{name}{index}", **cases.options("rows", strategy))
    held = check_training(original, out, plan, FIXTURES["dtypes"].training(), "momentum", steps=10)
    value = graphfreeze.value(held, name)
    assert value.dtype == getattr(held, name).dtype.as_numpy_dtype


@pytest.mark.parametrize("strategy", ["split", "mask"])
def test_special_bits_of_half_types_stay(strategy, tmp_path):
    """The stored bits, also those that a detour over float32 would lose: signalling NaN, -0.0, denormals."""
    import ml_dtypes
    import tensorflow as tf

    from tests.end_to_end.runs import load
    from tests.end_to_end.small_models import save

    bits = np.array([[0x7C01, 0x8000, 0x0001], [0xFC00, 0x7BFF, 0x3C00]], np.uint16)
    kernels = {"half": bits.view(np.float16), "brain": bits.view(ml_dtypes.bfloat16)}

    def functions(model):
        return {"both": (lambda: {name: getattr(model, name).read_value() for name in kernels}, [])}

    source, out = save(tmp_path / "model", {k: tf.constant(v) for k, v in kernels.items()}, functions), tmp_path / "out"
    graphfreeze.rewrite(source, out, freeze=["half[0]", "brain[0]"], strategy=strategy)
    held = load(out)
    for name, kernel in kernels.items():
        assert held.both()[name].numpy().tobytes() == kernel.tobytes()
        assert graphfreeze.value(held, name).tobytes() == kernel.tobytes()


@pytest.mark.parametrize("optimizer", ["adamw", "adam_clipnorm", "sparse_momentum"])
@pytest.mark.parametrize("strategy", ["split", "mask"])
def test_mixed_precision_trains_like_the_oracle(strategy, optimizer, tmp_path):
    from tests.end_to_end.runs import check_training
    from tests.helpers.models import FIXTURES

    original, out = MODELS / "keras_mixed", tmp_path / "out"
    plan = graphfreeze.rewrite(original, out, freeze=["variables/0[:9]", "variables/1[:, ::2]"], strategy=strategy)
    check_training(original, out, plan, FIXTURES["keras_mixed"].training(), optimizer)


@pytest.mark.parametrize("strategy", ["split", "mask", "live"])
@pytest.mark.parametrize("mode", ["eager", "function"])
def test_sparse_gradients_of_a_half_precision_lookup_stay_sparse(strategy, mode, tmp_path):
    """A float32 table, looked up and then cast; and a float16 table."""
    import tensorflow as tf

    from tests.end_to_end.runs import load
    from tests.end_to_end.small_models import numbers, save
    from tests.helpers.models import loss_of
    from tests.helpers.promises import Original, check_forward, check_gradients
    from tests.helpers.training import Training

    def functions(model):
        def predict(ids):
            cast = tf.cast(tf.gather(model.single, ids), tf.float16)
            return {"y": cast + tf.gather(model.half, ids)}

        return {"predict": (predict, [tf.TensorSpec([None], tf.int32, "ids")])}

    values = {"single": numbers(8, 4), "half": numbers(8, 4).astype(np.float16)}
    source, out = save(tmp_path / "model", values, functions), tmp_path / "out"
    plan = graphfreeze.rewrite(source, out, freeze=["single[:5]", "half[::2]"], **cases.options("rows", strategy))
    training = Training(
        lambda step: ((tf.constant([6, 0, 3, 4, 6, 7], tf.int32),),),
        lambda loaded, inputs: loss_of(loaded.predict(*inputs[0])),
    )
    original = Original(source, training)
    assert all(isinstance(g, tf.IndexedSlices) for g in original.gradients(mode).values())
    check_forward(original, out, plan)
    assert check_gradients(original, out, plan, mode) > 0
    with tf.GradientTape() as tape:
        held = load(out)
        loss = training.loss(held, training.batch(0))
    gradients = tape.gradient(loss, graphfreeze.trainable_variables(held))
    assert [g.dtype for g in gradients] == [tf.float32, tf.float16]
    assert all(isinstance(g, tf.IndexedSlices) for g in gradients)
