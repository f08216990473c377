"""Promise G5: finalize gives back the model that training the original would have given."""

from pathlib import Path

import numpy as np
import pytest

import graphfreeze
from tests.conftest import MODELS, OBJECT_MODELS
from tests.end_to_end.cases import CHOICES, FULL, KINDS, STRATEGIES, label, makes_sense, rewrite, weights_of
from tests.helpers.pairwise import everything, pairwise

pytestmark = pytest.mark.tf


FACTORS = {
    "fixture": [name for name in OBJECT_MODELS if weights_of(name)],
    "kind": tuple(KINDS),
    "strategy": STRATEGIES,
    "choice": CHOICES,
    "saved": ("with signatures", "without", "twice"),
}
MEET = (("fixture", "saved"), ("kind", "strategy"), ("kind", "saved"))
CASES = everything(FACTORS, makes_sense) if FULL else pairwise(FACTORS, makes_sense, MEET)

KNOWN_LATER = {"shapes": r"_output_shapes|size: \d+ != -1$"}


def effective_values(loaded, plan):
    """The value of every variable of the original, as the rewritten model computes with it."""
    from tests.helpers.promises import effective, parts_of
    from tests.helpers.variables import variables_by_path

    ours = [v for path, v in variables_by_path(loaded).items() if "graphfreeze" in f"{path}/{v.name}".split("/")]
    values = {path: v.numpy() for path, v in variables_by_path(loaded).items() if not any(v is o for o in ours)}
    held = {parts.plan.path: effective(parts) for parts in parts_of(loaded, plan)}
    return {path: value for path, value in (values | held).items() if not path.startswith("_all_variables/")}


@pytest.mark.parametrize("case", CASES, ids=label)
def test_a_trained_result_is_what_the_original_would_be(case, tmp_path):
    import tensorflow as tf

    from tests.helpers.canonical import assert_same_model
    from tests.helpers.resaved import assign_all, leftovers, save, save_again, train_a_little

    original, signatures = MODELS / case["fixture"], case["saved"] != "without"
    plan = rewrite(case, tmp_path / "out")
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    train_a_little(loaded)
    values = effective_values(loaded, plan)
    trained = save(loaded, tmp_path / "trained", signatures=signatures)
    expected = save_again(original, tmp_path / "expected", signatures=signatures, change=assign_all(values))
    if case["saved"] == "twice":
        trained = save_again(trained, tmp_path / "trained again", signatures=signatures)
        expected = save_again(expected, tmp_path / "expected again", signatures=signatures)
    graphfreeze.finalize(trained, tmp_path / "plain")
    # A variable of unknown shape is merged at the shape of its value, so TensorFlow knew more when it saved again.
    assert_same_model(tmp_path / "plain", expected, but=KNOWN_LATER.get(case["fixture"]))
    assert graphfreeze.diff(expected, tmp_path / "plain").equal or case["fixture"] in KNOWN_LATER
    assert not leftovers(tmp_path / "plain")


@pytest.mark.parametrize("fixture", FACTORS["fixture"])
def test_two_saves_of_one_model_have_one_canonical_form(fixture, tmp_path):
    from tests.helpers.canonical import assert_same_model
    from tests.helpers.resaved import save_again

    for name in "ab":
        save_again(MODELS / fixture, tmp_path / name, signatures=True)
    assert_same_model(tmp_path / "a", tmp_path / "b")


def wrapped(path: Path, out: Path, change=None) -> None:
    """A module of a user's that calls the model in functions, loops and branches of its own."""
    import tensorflow as tf

    inner = tf.saved_model.load(str(path))
    if change is not None:
        change(inner)
    shape = [None, *inner.__call__.concrete_functions[0].inputs[0].shape[1:]]

    class Outer(tf.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner
            self.gain = tf.Variable(2.0, name="gain")

        @tf.function(input_signature=[tf.TensorSpec(shape)])
        def twice(self, x):
            return self.gain * self.inner(x) + self.inner(2.0 * x)

        @tf.function(input_signature=[tf.TensorSpec(shape), tf.TensorSpec([], tf.int32)])
        def looped(self, x, n):
            first = self.inner(x)
            return tf.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y + self.inner(x)), (0, first))[1]

        @tf.function(input_signature=[tf.TensorSpec(shape)])
        def chosen(self, x):
            return tf.cond(tf.reduce_sum(x) > 0, lambda: self.inner(x) * self.gain, lambda: -self.inner(x))

    outer = Outer()
    tf.saved_model.save(outer, str(out), signatures={"serving_default": outer.twice})


@pytest.mark.parametrize("fixture", ["mlp", "nested", "shared_function", "unnamed", "loop", "custom_gradient"])
@pytest.mark.parametrize(
    ("kind", "strategy"),
    [("whole", "auto"), ("strict", "stop"), ("rows", "split"), ("dense mask", "mask"), ("rows", "live")],
)
def test_inside_a_module_of_the_users(fixture, kind, strategy, tmp_path):
    from tests.helpers.canonical import assert_same_model
    from tests.helpers.resaved import assign_all, leftovers, train_a_little

    case = {"fixture": fixture, "kind": kind, "choice": "even", "strategy": strategy}
    plan = rewrite(case, tmp_path / "out")
    values = {}

    def train(loaded):
        train_a_little(loaded)
        values.update(effective_values(loaded, plan))

    wrapped(tmp_path / "out", tmp_path / "trained", train)
    wrapped(MODELS / fixture, tmp_path / "expected", assign_all(values))
    done = graphfreeze.finalize(tmp_path / "trained", tmp_path / "plain")
    assert set(done.variables) == {v.name for v in plan.meta_graphs[0].variables if v.strategy}
    assert_same_model(tmp_path / "plain", tmp_path / "expected")
    assert not leftovers(tmp_path / "plain")


def test_two_models_of_one_origin_in_one_module(tmp_path):
    """Their variables and storages have the same names."""
    import tensorflow as tf

    from tests.helpers.canonical import assert_same_model
    from tests.helpers.resaved import assign_all, leftovers, train_a_little

    plan = graphfreeze.rewrite(MODELS / "nested", tmp_path / "out", freeze=["**[:1]"], strategy="mask")

    def pair(path, changes, out):
        outer = tf.Module()
        outer.parts = [tf.saved_model.load(str(path)) for _ in changes]
        for part, change in zip(outer.parts, changes, strict=True):
            change(part)
        outer.call = tf.function(
            lambda x: outer.parts[0](x) - outer.parts[1](x), input_signature=[tf.TensorSpec([None, 3])]
        )
        tf.saved_model.save(outer, str(out))

    values = [{}, {}]

    def train(number):
        def change(loaded):
            train_a_little(loaded, seed=number)
            values[number].update(effective_values(loaded, plan))

        return change

    pair(tmp_path / "out", [train(0), train(1)], tmp_path / "trained")
    pair(MODELS / "nested", [assign_all(v) for v in values], tmp_path / "expected")
    graphfreeze.finalize(tmp_path / "trained", tmp_path / "plain")
    assert_same_model(tmp_path / "plain", tmp_path / "expected")
    assert not leftovers(tmp_path / "plain")


@pytest.mark.parametrize("name", ["half", "brain", "single", "double", "complex_single", "complex_double"])
def test_bytes_of_every_dtype(name, tmp_path):
    """Effective values to the bit: NaN payloads, infinities, -0.0 and denormals."""
    import tensorflow as tf

    from graphfreeze.savedmodel import read_saved_model
    from tests.helpers.resaved import save

    (variable,) = (v for v in weights_of("dtypes") if v.path == name)
    graphfreeze.rewrite(MODELS / "dtypes", tmp_path / "out", freeze=[f"{variable.path}[::2]"], strategy="split")
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    (part,) = (v for v in loaded.graphfreeze.variables if v.trainable)
    dtype = part.dtype.as_numpy_dtype
    raw = np.random.default_rng(3).integers(0, 256, part.numpy().nbytes, np.uint8)  # NaNs of all kinds among them
    value = raw.view(dtype).reshape(part.shape.as_list())
    value.flat[:4] = np.array([-0.0, np.inf, np.nan, np.finfo(np.float32).tiny]).astype(dtype)
    part.assign(value)
    expected = getattr(loaded, variable.path).numpy().copy()
    expected[1::2] = part.numpy()
    graphfreeze.finalize(save(loaded, tmp_path / "trained", signatures=True), tmp_path / "plain")
    bundle = read_saved_model(tmp_path / "plain").bundle
    assert bundle.read_bytes(variable.key) == expected.tobytes()
    assert expected[1::2].tobytes() == value.tobytes()


def holding(path: Path, out: Path, change, optimizer=None) -> None:
    """A module that holds a model, a list, a dictionary and an attribute of what trains, and perhaps an optimizer."""
    import tensorflow as tf

    outer = tf.Module()
    outer.model = tf.saved_model.load(str(path))
    change(outer.model)
    try:
        trains = graphfreeze.trainable_variables(outer.model)
    except graphfreeze.errors.UsageError:
        trains = [getattr(outer.model, name) for name in ("kernel", "bias")]
    outer.listed, outer.named, outer.one = trains, {"first": trains[0]}, trains[0]
    if optimizer is not None:
        outer.optimizer = optimizer(trains)
    tf.saved_model.save(outer, str(out))


def holdable(path: Path) -> Path:
    """A model whose every variable is frozen in part."""
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            self.kernel = tf.Variable(tf.random.stateless_normal([4, 3], [0, 1]), name="kernel")
            self.bias = tf.Variable([1.0, 2.0, 3.0], name="bias")

        @tf.function(input_signature=[tf.TensorSpec([None, 4])])
        def __call__(self, x):
            return x @ self.kernel + self.bias

    tf.saved_model.save(Model(), str(path))
    return path


def test_where_a_user_holds_a_part_the_variable_is_held_again(tmp_path):
    from tests.helpers.canonical import assert_same_model
    from tests.helpers.resaved import assign_all, leftovers, train_a_little

    source = holdable(tmp_path / "source")
    plan = graphfreeze.rewrite(source, tmp_path / "out", freeze=["kernel[:2]", "bias[0]"])
    values = {}

    def train(loaded):
        train_a_little(loaded)
        values.update(effective_values(loaded, plan))

    holding(tmp_path / "out", tmp_path / "trained", train)
    holding(source, tmp_path / "expected", assign_all(values))
    graphfreeze.finalize(tmp_path / "trained", tmp_path / "plain")
    assert_same_model(tmp_path / "plain", tmp_path / "expected")
    assert not leftovers(tmp_path / "plain")


def test_slots_of_a_part_go_with_it(tmp_path):
    import tensorflow as tf

    from tests.helpers.resaved import leftovers, train_a_little

    class Slots(tf.Module):
        """Keeps a variable of the same shape for each, as the optimizers of Keras 3 do."""

        def __init__(self, variables):
            super().__init__()
            self.momentums = [tf.Variable(tf.zeros_like(v), name=f"momentum_{i}") for i, v in enumerate(variables)]

    source = holdable(tmp_path / "source")
    graphfreeze.rewrite(source, tmp_path / "out", freeze=["kernel[:2]"])
    holding(tmp_path / "out", tmp_path / "trained", train_a_little, Slots)
    graphfreeze.finalize(tmp_path / "trained", tmp_path / "plain")
    assert not leftovers(tmp_path / "plain")
    loaded = tf.saved_model.load(str(tmp_path / "plain"))
    # What the user added stays as it was, of the part's shape; what it means only the user knows.
    assert [v.shape.as_list() for v in loaded.optimizer.momentums] == [[2, 3], [3]]
    assert [v.name for v in loaded.listed] == ["kernel:0", "bias:0"]


def stepping(path: Path, out: Path) -> None:
    """A module whose training step is traced and saved with it."""
    import tensorflow as tf

    class Trainer(tf.Module):
        def __init__(self):
            super().__init__()
            self.model = tf.saved_model.load(str(path))

        @tf.function(input_signature=[tf.TensorSpec([None, 4])])
        def step(self, x):
            variables = graphfreeze.trainable_variables(self.model)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(self.model(x) ** 2.0)
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(0.1 * gradient)
            return loss

    tf.saved_model.save(Trainer(), str(out))


def test_a_saved_training_step_that_uses_whole_variables_stays(tmp_path):
    import tensorflow as tf

    source = holdable(tmp_path / "source")
    graphfreeze.rewrite(source, tmp_path / "out", freeze=["kernel"])
    stepping(tmp_path / "out", tmp_path / "trained")
    graphfreeze.finalize(tmp_path / "trained", tmp_path / "plain")
    found, expected = (tf.saved_model.load(str(tmp_path / name)) for name in ("plain", "trained"))
    x = tf.random.stateless_normal([5, 4], [1, 2])
    assert [found.step(x).numpy() for _ in range(3)] == [expected.step(x).numpy() for _ in range(3)]
    assert np.array_equal(found.model.bias.numpy(), expected.model.bias.numpy())


def test_a_saved_training_step_that_updates_a_part_is_refused(tmp_path):
    source = holdable(tmp_path / "source")
    graphfreeze.rewrite(source, tmp_path / "out", freeze=["kernel[:2]"])
    stepping(tmp_path / "out", tmp_path / "trained")
    with pytest.raises(
        graphfreeze.errors.UnsupportedModelError, match="graphfreeze added and has to take out"
    ) as error:
        graphfreeze.finalize(tmp_path / "trained", tmp_path / "plain")
    assert "leave that function out when saving" in str(error.value)
