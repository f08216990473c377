"""``freeze`` of what TensorFlow loaded and of modules: the same as through files, and what is left out is said."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import graphfreeze
from graphfreeze.errors import NoMatchError, NothingToTrainError, UsageError
from tests.conftest import MODELS
from tests.helpers.compare import assert_bits_equal
from tests.helpers.functions import outputs_of
from tests.helpers.models import FIXTURES
from tests.helpers.optimizers import OPTIMIZERS
from tests.helpers.promises import assert_same_outputs
from tests.helpers.training import train

pytestmark = pytest.mark.tf

X = np.random.default_rng(3).normal(size=(6, 4)).astype(np.float32)


def quietly(call, *arguments, **options):
    """The call's result and the texts of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = call(*arguments, **options)
    return found, [str(w.message) for w in caught if w.filename == __file__]


SAME = {
    "embedding": (["emb/embeddings[:5]", "dense/kernel[[0, 1], [0, 1]]"], "adam_ema"),
    "keras_embedding": (["**/dense/kernel[:, :1]", "**/embeddings[2:]"], "momentum"),
    "keras_lists": (["encoder/first/kernel", "encoder/second/kernel[:2]"], "adam_clipnorm"),
}


@pytest.mark.filterwarnings("ignore:.*strategy 'mask' is exact:UserWarning")
@pytest.mark.parametrize("name", SAME)
def test_the_same_as_through_files(name, tmp_path):
    """One spec, one training: bit-identical effective values; then the source takes them over."""
    rules, optimizer = SAME[name]
    source = tf.saved_model.load(str(MODELS / name))
    plan = graphfreeze.rewrite(MODELS / name, tmp_path / "out", freeze=rules)
    by_file = tf.saved_model.load(str(tmp_path / "out"))
    frozen = graphfreeze.freeze(source, freeze=rules)
    assert_same_outputs(outputs_of(frozen), outputs_of(source))
    for model in (by_file, frozen):
        variables = graphfreeze.trainable_variables(model)
        train(FIXTURES[name].training(), model, variables, OPTIMIZERS[optimizer](), steps=5)
    paths = [v.path for v in plan.meta_graphs[0].touched()]
    for path in paths:
        assert_bits_equal(graphfreeze.value(frozen, path), graphfreeze.value(by_file, path), path)
    done = graphfreeze.finalize_into(frozen)
    assert done.model is source
    assert done.variables
    assert_same_outputs(outputs_of(source), outputs_of(frozen))


class Dense(tf.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        values = np.random.default_rng(inputs).normal(size=(inputs, outputs))
        self.kernel = tf.Variable(values, dtype=tf.float32, name="kernel")
        self.bias = tf.Variable(tf.zeros([outputs]), name="bias")

    def __call__(self, x):
        return x @ self.kernel + self.bias


class Net(tf.Module):
    """Two layers of one name in a list, a counter, a function that is never traced and one that is plain."""

    def __init__(self):
        super().__init__()
        self.layers = [Dense(4, 5), Dense(5, 3)]
        self.steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="steps")

    @tf.function
    def __call__(self, x):
        self.steps.assign_add(1)
        return self.layers[1](tf.tanh(self.layers[0](x)))

    @tf.function
    def untraced(self, x):
        return x

    def describe(self):
        return "two layers"


def traced():
    net = Net()
    net(X)
    return net


@pytest.mark.filterwarnings("ignore:.*not in the frozen object:UserWarning")
def test_a_module():
    net = traced()
    frozen = graphfreeze.freeze(net, freeze=["layers/*/kernel[:2]", "layers/0/bias"], train="layers/0/bias[4]")
    expected = net.layers[1](np.tanh(net.layers[0](X)))
    np.testing.assert_allclose(frozen(X), expected, rtol=1e-6)
    assert [v.shape.as_list() for v in graphfreeze.trainable_variables(frozen)] == [[2, 5], [1], [3, 3], [3]]
    for variable in graphfreeze.trainable_variables(frozen):
        variable.assign_add(tf.ones_like(variable))
    assert net.layers[0].kernel is not frozen.layers[0].kernel
    before = net.layers[0].kernel.numpy()
    done = graphfreeze.finalize_into(frozen)
    assert done.variables == ("steps", "layers/0/kernel", "layers/0/bias", "layers/1/kernel", "layers/1/bias")
    assert done.to_dict() == {"schema": 1, "command": "finalize_into", "variables": list(done.variables)}
    moved = np.arange(4)[:, None] >= 2
    assert_bits_equal(net.layers[0].kernel.numpy(), np.where(moved, before + np.float32(1), before))
    assert net.layers[0].bias.numpy().tolist() == [0, 0, 0, 0, 1]
    assert int(net.steps) == 2
    assert graphfreeze.finalize_into(frozen).variables == ()


def test_what_a_module_leaves_behind_is_named():
    _, said = quietly(graphfreeze.freeze, traced(), freeze="layers/0/**")
    untraced, plain = said
    assert untraced == (
        "Functions that were never traced are not in the frozen object: 'untraced'. Call each once before freezing, or "
        "give it an input_signature"
    )
    assert plain == (
        "Plain Python methods of 'Net' are not in the frozen object: 'describe'. Decorate those that you need with "
        "tf.function and call them once before freezing"
    )


def test_inputs_trace_a_call():
    """A tf.function for one more signature, a plain method for the time of the export only."""
    net = Net()
    frozen, _ = quietly(graphfreeze.freeze, net, freeze="layers/0/**", inputs=X)
    assert frozen(X[:2]).shape == (2, 3)
    plain = Dense(4, 3)
    frozen = graphfreeze.freeze(plain, freeze="kernel[:1]", inputs=tf.TensorSpec([None, 4]))
    np.testing.assert_allclose(frozen(X[:3]), plain(X[:3]), rtol=1e-6)
    assert "__call__" not in vars(plain)
    with pytest.raises(UsageError, match="inputs= do not fit the __call__ of 'Dense': in user code"):
        graphfreeze.freeze(plain, freeze="kernel[:1]", inputs=tf.TensorSpec([None, 5]))
    loaded = tf.saved_model.load(str(MODELS / "mlp"))
    with pytest.raises(UsageError, match=r"inputs= is for a tf.Module or a Keras model with a __call__"):
        graphfreeze.freeze(loaded, freeze="out/bias", inputs=X)


class Untracked(tf.Module):
    @tf.function(input_signature=[])
    def __call__(self):
        return HIDDEN + 1.0


HIDDEN = tf.Variable(1.0)


def test_what_tensorflow_cannot_save():
    with pytest.raises(graphfreeze.UnsupportedModelError) as error:
        graphfreeze.freeze(Untracked(), freeze="**")
    assert str(error.value).startswith("TensorFlow cannot save this 'Untracked': Tried to export a function")
    assert str(error.value).endswith(". Hold everything that its functions use in its attributes")


def test_nothing_traced():
    with pytest.raises(UsageError) as error:
        graphfreeze.freeze(Net(), freeze="**")
    assert str(error.value) == (
        "Nothing of this 'Net' was ever traced, so there is no graph to freeze: '__call__', 'untraced'. Call a "
        "tf.function of it once, give it an input_signature, or pass inputs= with example inputs or tf.TensorSpecs of "
        "its __call__"
    )


@pytest.mark.filterwarnings("ignore:.*not in the frozen object:UserWarning")
def test_errors_speak_of_the_object():
    net = traced()
    with pytest.raises(NoMatchError) as error:
        graphfreeze.freeze(net, freeze="layers/0/kernal")
    assert str(error.value) == (
        "No variable matches 'layers/0/kernal'. Did you mean 'layers/0/kernel' or 'layers/1/kernel'? The model has 5 "
        "variables: 'steps', 'layers/0/kernel', 'layers/0/bias', 'layers/1/kernel', 'layers/1/bias'"
    )
    with pytest.raises(NothingToTrainError):
        graphfreeze.freeze(net, freeze="**")
    frozen = graphfreeze.freeze(net, freeze="**", allow_empty=True, strict=True)
    assert graphfreeze.trainable_variables(frozen) == []
    with pytest.raises(UsageError, match="tags= select a meta graph of a SavedModel on disk"):
        graphfreeze.freeze(net, freeze="**", tags=["serve"])
    with pytest.raises(UsageError, match="Nothing says what to freeze"):
        graphfreeze.freeze(net)


@pytest.mark.filterwarnings("ignore:.*not in the frozen object:UserWarning")
def test_finalize_into_an_object_that_has_changed():
    net = traced()
    frozen = graphfreeze.freeze(net, freeze="layers/0/**")
    net.layers[0].kernel = tf.Variable(tf.zeros([4, 5]))
    graphfreeze.trainable_variables(frozen)[0].assign_add(tf.ones([5, 3]))
    before = net.layers[1].kernel.numpy()
    with pytest.raises(graphfreeze.UnsupportedModelError) as error:
        graphfreeze.finalize_into(frozen)
    assert str(error.value) == (
        "The object that was frozen has changed: 'layers/0/kernel' is another variable now, or none. Nothing was "
        "written. Read the values with graphfreeze.value(frozen, NAME)"
    )
    assert_bits_equal(net.layers[1].kernel.numpy(), before)


def test_frozen_again_and_back():
    """A frozen object is frozen once more; values go back through the storage of its freeze."""
    source = tf.saved_model.load(str(MODELS / "mlp"))
    first = graphfreeze.freeze(source, freeze="out/kernel[:1]")
    second = graphfreeze.freeze(first, freeze="out/bias[:1]", add=True)
    for variable in graphfreeze.trainable_variables(second):
        variable.assign_add(tf.ones_like(variable))
    assert graphfreeze.finalize_into(second).model is first
    assert_same_outputs(outputs_of(first), outputs_of(second))
    assert_bits_equal(graphfreeze.value(first, "out/kernel"), graphfreeze.value(second, "out/kernel"))
    graphfreeze.finalize_into(first)
    assert_same_outputs(outputs_of(source), outputs_of(second))


def test_nothing_is_left_on_disk(tmp_path, monkeypatch):
    """Only assets stay, for as long as the object does; it can be saved again with them."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    with pytest.raises(NoMatchError):
        graphfreeze.freeze(tf.saved_model.load(str(MODELS / "mlp")), freeze="nothing")
    graphfreeze.freeze(tf.saved_model.load(str(MODELS / "mlp")), freeze="out/bias")
    assert list((tmp_path / "scratch").iterdir()) == []


class Words(tf.Module):
    def __init__(self, vocabulary):
        super().__init__()
        ids = tf.lookup.TextFileInitializer(vocabulary, tf.string, 0, tf.int64, -1, delimiter=" ")
        self.table = tf.lookup.StaticHashTable(ids, -1)
        self.rows = tf.Variable(np.eye(3, dtype=np.float32), name="rows")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def __call__(self, words):
        return tf.gather(self.rows, self.table.lookup(words))


def test_assets_live_as_long_as_the_object(tmp_path):
    (tmp_path / "words.txt").write_text("a 0\nb 1\nc 2\n")
    frozen = graphfreeze.freeze(Words(str(tmp_path / "words.txt")), freeze="rows[:2]")
    (tmp_path / "words.txt").unlink()
    assert_bits_equal(frozen(tf.constant(["c", "a"])), np.eye(3, dtype=np.float32)[[2, 0]])
    tf.saved_model.save(frozen, str(tmp_path / "out"))
    again = tf.saved_model.load(str(tmp_path / "out"))
    assert_bits_equal(again(tf.constant(["b"])), np.eye(3, dtype=np.float32)[[1]])
