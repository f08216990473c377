"""Models that train themselves: their own steps leave frozen elements alone, and train the rest as they should.

The oracle is the fixture's own Python, in which frozen elements of each gradient are set to zero by hand as soon as the
tape gives it, and frozen elements of each variable are put back by hand after every step.
"""

import sys

import numpy as np
import pytest

import graphfreeze
from tests.conftest import MODELS

pytestmark = pytest.mark.tf
sys.path.insert(0, str(MODELS.parent))

STEPS = 20
REGIONS = {
    "whole": "",
    "box of rows": "[1:3]",
    "most rows": "[:-1]",
    "row list": "[[0, 2, 3]]",
    "columns": "[..., :1]",
    "stepped": "[..., ::2]",
    "points": "[POINTS]",
    "one point": "[POINT]",
}


def index_of(region, shape):
    """The index as numpy takes it, and as text."""
    two = ", ".join(["[0, 1]"] * len(shape))
    one = ", ".join(["[0]"] * len(shape))
    text = REGIONS[region].replace("POINTS", two).replace("POINT", one)
    return (eval(f"np.s_{text}") if text else ...), text


def mask_of(region, shape):
    flags = np.zeros(shape, bool)
    flags[index_of(region, shape)[0]] = True
    return flags


def python_model(name):
    from recipes import train_steps
    from recipes.common import Numbers

    return {
        "train_keras": lambda: train_steps.Keras3Step(Numbers(name)),
        "train_tf_keras": lambda: train_steps.TfKerasStep(Numbers(name)),
        "train_clipped": lambda: train_steps.ClippedStep(Numbers(name)),
        "train_accumulated": lambda: train_steps.AccumulatedStep(Numbers(name)),
        "train_ops": lambda: train_steps.RawSteps(Numbers(name), ["momentum", "nesterov", "adagrad", "ftrl"]),
        "train_ops_more": lambda: train_steps.RawSteps(
            Numbers(name), ["rmsprop", "centered_rmsprop", "proximal_adagrad"]
        ),
    }[name]()


def restored(name):
    """The fixture's Python with the numbers of the saved model."""
    import tensorflow as tf

    model = python_model(name)
    if name == "train_tf_keras":
        model.optimizer._create_all_weights(model.weights())
    status = tf.train.Checkpoint(root=model).read(str(MODELS / name / "variables" / "variables"))
    status.assert_existing_objects_matched()
    return model


def inputs(name, step):
    import tensorflow as tf
    from recipes import train_steps

    if name.startswith("train_ops"):
        return tf.constant(np.random.default_rng(100 + step).standard_normal((5, 4)).astype(np.float32))
    return tuple(map(tf.constant, train_steps.batch(100 + step)))


def take_step(model, name, step, afterwards=lambda: None):
    """One step through the functions of a loaded model or of the fixture's Python."""
    import tensorflow as tf

    if name.startswith("train_ops"):
        model.train_rows(tf.constant([step % 8, (step + 3) % 8, step % 8], tf.int32))
        afterwards()
        model.train(inputs(name, step))
    else:
        model.train(*inputs(name, step))
    afterwards()


def variables_of(model, name):
    if name.startswith("train_ops"):
        return dict(model.tables)
    names = {"train_clipped": ["table", "kernel", "square"]}.get(name, ["table", "kernel"])
    return {n: getattr(model, n) for n in names}


def hold_gradients(oracle, name, frozen):
    """Frozen elements are constants: their gradients are zero before anything is computed from them."""
    import tensorflow as tf

    named = variables_of(oracle, name)

    def held(gradient, mask):
        if isinstance(gradient, tf.IndexedSlices):
            values = tf.where(tf.gather(mask, gradient.indices), tf.zeros_like(gradient.values), gradient.values)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return tf.where(mask, tf.zeros_like(gradient), gradient)

    masks = [next((frozen[n] for n, v in named.items() if v is w), None) for w in oracle.weights()]
    for total, mask in zip(getattr(oracle, "sums", []), masks, strict=False):
        if mask is not None:
            total.assign(tf.where(mask, tf.zeros_like(total), total))
    oracle.seen = lambda gradients: [g if m is None else held(g, m) for g, m in zip(gradients, masks, strict=True)]


def selectors(model, name, region):
    paths = {n: (f"tables/{n}" if name.startswith("train_ops") else n) for n in variables_of(model, name)}
    return {paths[n]: f"{paths[n]}{index_of(region, tuple(v.shape))[1]}" for n, v in variables_of(model, name).items()}


SOME = {
    "train_clipped": ("whole", "row list", "columns", "points"),
    "train_accumulated": ("whole", "stepped", "one point"),
}
"""Regions for steps whose guards are those of others; all the rest take all regions."""
NAMES = ("train_keras", "train_tf_keras", "train_ops", "train_ops_more", *SOME)


@pytest.mark.parametrize(("name", "region"), [(name, r) for name in NAMES for r in SOME.get(name, REGIONS)])
def test_own_steps_leave_frozen_elements_and_train_the_rest(name, region, tmp_path):
    import tensorflow as tf

    oracle = restored(name)
    chosen = selectors(oracle, name, region)
    plan = graphfreeze.rewrite(MODELS / name, tmp_path / "out", freeze=tuple(chosen.values()), allow_empty=True)
    held = tf.saved_model.load(str(tmp_path / "out"))
    before = {n: v.numpy() for n, v in variables_of(oracle, name).items()}
    frozen = {n: mask_of(region, v.shape) for n, v in before.items()}
    assert sum(v.frozen for v in plan.meta_graphs[0].variables) == sum(m.sum() for m in frozen.values())

    if hasattr(oracle, "seen"):
        hold_gradients(oracle, name, frozen)

    def put_back():
        for n, v in variables_of(oracle, name).items():
            v.assign(np.where(frozen[n], before[n], v.numpy()))

    for step in range(STEPS):
        take_step(held, name, step)
        take_step(oracle, name, step, put_back)
    for n, v in variables_of(held, name).items():
        after, effective = v.numpy(), graphfreeze.value(held, f"tables/{n}" if name.startswith("train_ops") else n)
        assert after[frozen[n]].tobytes() == before[n][frozen[n]].tobytes(), n
        assert effective[frozen[n]].tobytes() == before[n][frozen[n]].tobytes(), n
        expected = variables_of(oracle, name)[n].numpy()
        moved = ~frozen[n] & (expected != before[n])
        assert moved.sum() >= 0.7 * (~frozen[n]).sum(), n
        np.testing.assert_allclose(
            effective, expected, rtol=0, atol=16 * np.finfo(np.float32).eps * np.abs(expected).max(), err_msg=n
        )
