"""Fixtures of every structure: their checkpoints restore in the rewritten model and come back, nothing left over."""

import numpy as np
import pytest

import graphfreeze
from tests.conftest import MODELS
from tests.end_to_end.cases import FULL
from tests.helpers.expected import pinned, selectors

pytestmark = pytest.mark.tf

FIXTURES = sorted(n for n, found in pinned()["fixtures"].items() if found.get("slice", {}).get("exit") == 0)
SOME = ("digits", "keras_lists", "slots", "unnamed")


def moved(path, seed=1):
    """The loaded model with other numbers in every variable that is a number."""
    import tensorflow as tf

    from tests.helpers.variables import variables_by_path

    loaded = tf.saved_model.load(str(path))
    generator = np.random.default_rng(seed)
    for variable in {id(v): v for v in variables_by_path(loaded).values()}.values():
        if variable.dtype.is_floating and "graphfreeze/mask" not in variable.name:
            noise = generator.normal(size=variable.numpy().shape)
            variable.assign(variable.numpy() + noise.astype(variable.dtype.as_numpy_dtype))
    return loaded


def numbers(loaded):
    from tests.helpers.variables import variables_by_path

    found = variables_by_path(loaded)
    return {p: v.numpy() for p, v in found.items() if v.dtype.is_floating and "graphfreeze" not in f"{p}/{v.name}"}


def restore(path, prefix):
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    tf.train.Checkpoint(model=loaded).read(str(prefix)).assert_consumed()
    return loaded


def effective(loaded, plan, values):
    return {v.path: graphfreeze.value(loaded, v.path) for v in plan.meta_graphs[0].touched() if v.path in values}


def there_and_back(source, rewritten, plan, tmp_path):
    import tensorflow as tf

    original = moved(source)
    tf.train.Checkpoint(model=original).write(str(tmp_path / "old"))
    graphfreeze.checkpoint(tmp_path / "old", tmp_path / "new", into=rewritten)
    trained = restore(rewritten, tmp_path / "new")
    values = numbers(original)
    found = effective(trained, plan, values)
    assert found
    for path, value in found.items():
        assert np.array_equal(value, values[path], equal_nan=True), path
    # The rewritten model's own checkpoint, at other numbers in parts, copies and dead storage.
    other = moved(rewritten, seed=2)
    tf.train.Checkpoint(model=other).write(str(tmp_path / "trained"))
    graphfreeze.checkpoint(tmp_path / "trained", tmp_path / "back", from_=rewritten)
    back = numbers(restore(source, tmp_path / "back"))
    for path, value in effective(other, plan, back).items():
        assert np.array_equal(back[path], value, equal_nan=True), path


@pytest.mark.parametrize("name", FIXTURES if FULL else SOME)
@pytest.mark.parametrize("strategy", ["auto", "mask"])
def test_a_fixture(name, strategy, tmp_path):
    rules = selectors(graphfreeze.inspect(MODELS / name), "slice")
    plan = graphfreeze.rewrite(MODELS / name, tmp_path / "out", freeze=rules, strategy=strategy)
    there_and_back(MODELS / name, tmp_path / "out", plan, tmp_path)


def test_whole_variables_and_lists_of_keras(tmp_path):
    rules = selectors(graphfreeze.inspect(MODELS / "digits"), "whole")[:3]
    plan = graphfreeze.rewrite(MODELS / "digits", tmp_path / "out", freeze=rules)
    there_and_back(MODELS / "digits", tmp_path / "out", plan, tmp_path)


def test_a_model_that_was_trained_and_saved_again(tmp_path):
    """The object graph is TensorFlow's, with other numbers, then."""
    from tests.helpers.resaved import save, train_a_little

    import tensorflow as tf  # isort: skip

    plan = graphfreeze.rewrite(MODELS / "mlp", tmp_path / "out", freeze=["out/kernel[:2]", "dense_0/bias"])
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    train_a_little(loaded)
    save(loaded, tmp_path / "trained model", signatures=True)
    there_and_back(MODELS / "mlp", tmp_path / "trained model", plan, tmp_path)


def test_a_model_inside_a_module_of_the_users(tmp_path):
    import tensorflow as tf

    from tests.end_to_end.test_finalize import holdable

    source = holdable(tmp_path / "inner")
    graphfreeze.rewrite(source, tmp_path / "inner out", freeze=["kernel[:2]"])
    for name in ("inner", "inner out"):
        outer = tf.Module()
        outer.part = tf.saved_model.load(str(tmp_path / name))
        outer.gain = tf.Variable(2.0, name="gain")
        tf.saved_model.save(outer, str(tmp_path / f"outer {name}"))
    original = moved(tmp_path / "outer inner")
    tf.train.Checkpoint(model=original).write(str(tmp_path / "old"))
    graphfreeze.checkpoint(tmp_path / "old", tmp_path / "new", into=tmp_path / "outer inner out")
    trained = restore(tmp_path / "outer inner out", tmp_path / "new")
    kernel = trained.part.kernel.numpy().copy()
    kernel[2:] = trained.part.graphfreeze.variables[0].numpy()
    assert np.array_equal(kernel, original.part.kernel.numpy())
    assert trained.gain.numpy() == original.gain.numpy()
    tf.train.Checkpoint(model=trained).write(str(tmp_path / "trained"))
    graphfreeze.checkpoint(tmp_path / "trained", tmp_path / "back", from_=tmp_path / "outer inner out")
    assert np.array_equal(restore(tmp_path / "outer inner", tmp_path / "back").part.kernel.numpy(), kernel)


def test_geometry_that_is_a_variable(tmp_path):
    """A mask of a large variable comes from the rewritten model and goes again."""
    import tensorflow as tf

    model = tf.Module()
    model.w = tf.Variable(tf.random.stateless_normal([1000, 600], [0, 1]), name="w")
    model.f = tf.function(lambda x: x @ model.w, input_signature=[tf.TensorSpec([None, 1000])])
    tf.saved_model.save(model, str(tmp_path / "source"))
    np.save(tmp_path / "mask.npy", np.random.default_rng(0).random((1000, 600)) < 0.5)
    plan = graphfreeze.rewrite(tmp_path / "source", tmp_path / "out", freeze=[f"w[@{tmp_path / 'mask.npy'}]"])
    names = [v.name for v in tf.saved_model.load(str(tmp_path / "out")).graphfreeze.variables]
    assert any("graphfreeze/mask" in name for name in names)
    there_and_back(tmp_path / "source", tmp_path / "out", plan, tmp_path)
