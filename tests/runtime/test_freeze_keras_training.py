"""``fit`` of a frozen Keras model follows an oracle that knows nothing of graphfreeze, with every optimizer.

The oracle trains what plain Keras exports of the same model, by hand, with the frozen elements as constants.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import graphfreeze
from tests.end_to_end.cases import FULL
from tests.helpers.compare import assert_bits_equal
from tests.helpers.optimizers import OPTIMIZERS
from tests.helpers.oracle import Frozen, Oracle
from tests.helpers.training import Training
from tests.helpers.variables import find_variable
from tests.runtime.keras_models import X, Y, stack

pytestmark = pytest.mark.tf

EPOCHS, BATCH = 4, 4
X64, Y64 = X.astype(np.float64), Y.astype(np.float64)
RULES = ["norm/moving_mean[:2]", "hidden/kernel[:2]", "hidden/bias", "head/kernel[[0, 1, 5], [0, 2, 1]]"]
POINTS = np.zeros((6, 3), bool)
POINTS[[0, 1, 5], [0, 2, 1]] = True
FROZEN = {
    "hidden/kernel": Frozen(np.repeat([[True], [True], [False], [False]], 6, axis=1), "split"),
    "hidden/bias": Frozen(np.ones(6, bool), "stop"),
    "head/kernel": Frozen(POINTS, "mask"),
}
CHOSEN = ("adamw", "adam_ema", "adam_clipnorm")
KERAS_OPTIMIZERS = [name for name in OPTIMIZERS if name != "sparse_momentum" and (FULL or name in CHOSEN)]


@pytest.fixture(autouse=True)
def float64():
    """So that only rounding in the last places is allowed to differ."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


def exported(model, folder):
    """Both modes, written by Keras itself."""
    archive = keras.export.ExportArchive()
    archive.track(model)
    signature = [tf.TensorSpec([None, 4], tf.float64)]
    archive.add_endpoint("serve", lambda x: model(x, training=False), input_signature=signature)
    archive.add_endpoint("train", lambda x: model(x, training=True), input_signature=signature)
    archive.write_out(str(folder), verbose=False)
    return tf.saved_model.load(str(folder))


def batch(step):
    start = step * BATCH % len(X)
    return ((tf.constant(X64[start : start + BATCH]), tf.constant(Y64[start : start + BATCH])),)


def loss(loaded, inputs):
    ((x, y),) = inputs
    penalty = 0.0625 * tf.reduce_sum(find_variable(loaded, "hidden/kernel") ** 2)
    return keras.losses.MeanSquaredError()(y, loaded.train(x)) + penalty


def assert_close(actual, expected, label):
    """G4 in float64: ``fit`` compiles a step as one graph, whose sums TensorFlow orders otherwise."""
    assert actual.dtype == expected.dtype == np.float64
    assert np.abs(actual - expected).max() <= 1e-12 * np.abs(expected).max(), label


@pytest.mark.filterwarnings("ignore:.*strategy 'mask' is exact:UserWarning", "ignore:.*copy 'live' holds:UserWarning")
@pytest.mark.parametrize("name", KERAS_OPTIMIZERS)
def test_fit_follows_the_oracle(name, tmp_path):
    model = stack()
    before = {v.path: v.numpy() for v in model.variables}
    loaded = exported(model, tmp_path / "plain")
    frozen = graphfreeze.freeze(model, freeze=RULES)
    frozen.compile(OPTIMIZERS[name](), "mse")
    frozen.fit(X64, Y64, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)
    oracle = Oracle(loaded, FROZEN, Training(batch, loss), mode="function")
    oracle.train(OPTIMIZERS[name](), EPOCHS * len(X) // BATCH)
    for path, rule in FROZEN.items():
        value = graphfreeze.value(frozen, path)
        assert_bits_equal(value[rule.mask], before[path][rule.mask], path)
        assert rule.mask.all() or (value != before[path]).any()  # the signs of Lion may add up to nothing
    trained = oracle.effective()
    assert len(trained) == 5
    for path, value in trained.items():
        label = find_variable(loaded, path).name.removesuffix(":0")
        assert_close(graphfreeze.value(frozen, label), value, label)
    for label in ("norm/moving_mean", "norm/moving_variance"):
        statistic, value = find_variable(loaded, label).numpy(), graphfreeze.value(frozen, label)
        still = 2 if label in RULES[0] else 0
        assert (statistic != before[label]).all()
        assert_bits_equal(value[:still], before[label][:still])
        assert_close(value[still:], statistic[still:], label)
    assert {v.path: v.numpy().tobytes() for v in model.variables} == {p: b.tobytes() for p, b in before.items()}
