"""The fixtures are what their README says: small, loadable, callable, and trainable where TensorFlow allows it."""

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import MODELS, OBJECT_MODELS
from tests.helpers.compare import assert_all_bits_equal
from tests.helpers.functions import Failure, outputs_of
from tests.helpers.models import FIXTURES, Call, function_of, gradient_masks, loss_of
from tests.helpers.variables import trainable_of

pytestmark = pytest.mark.tf

LARGEST = 100_000
NAMES = sorted(FIXTURES)
EVERY = sorted(path.name for path in MODELS.iterdir())

UNUSABLE_INPUTS: dict[str, frozenset[str]] = {}
"""Functions that reject the inputs made from their own specs."""

SOME_ELEMENTS_ONLY = frozenset({"digits"})
"""ReLU and max-pooling: each variable has a gradient, not every element."""

ERRORS = {
    "cond_in_loop/__call__": "handle data",
    "datasets/mapped": "No gradient defined for operation",
}
"""What TensorFlow says when one of the calls pinned as without gradient is differentiated."""


def all_calls(name: str) -> list[Call]:
    return [*FIXTURES[name].calls, *FIXTURES[name].others]


def test_every_model_on_disk_is_described_and_the_other_way_round():
    assert NAMES == OBJECT_MODELS


def test_readme_has_a_line_for_every_model():
    lines = (MODELS.parent / "README.md").read_text().splitlines()
    assert sorted(line.split("`")[1] for line in lines if line.startswith("| `")) == EVERY


@pytest.mark.parametrize("name", EVERY)
def test_is_small(name):
    assert sum(file.stat().st_size for file in (MODELS / name).rglob("*") if file.is_file()) < LARGEST


@pytest.mark.parametrize("name", NAMES)
def test_every_function_runs_and_repeats_itself(name):
    loaded = tf.saved_model.load(str(MODELS / name))
    first, second = outputs_of(loaded), outputs_of(loaded)
    # Inputs are tried in several ranges; ids beyond a small table fail, as they should.
    run = {key.partition(", integers")[0] for key, outputs in first.items() if not isinstance(outputs, Failure)}
    failed = {key for key in first if key.partition(", integers")[0] not in run}
    assert {key.partition(", integers")[0] for key in failed} == UNUSABLE_INPUTS.get(name, frozenset())
    dropout = FIXTURES[name].skip if name == "train_loop" else frozenset()
    same = [key for key in first if key.partition(", integers")[0] not in dropout]
    assert_all_bits_equal({key: second[key] for key in same}, {key: first[key] for key in same})


@pytest.mark.parametrize("name", NAMES)
def test_named_calls_run(name):
    loaded = tf.saved_model.load(str(MODELS / name))
    for call in all_calls(name):
        outputs = function_of(loaded, call.function)(*call.inputs(np.random.default_rng(0), ()))
        assert tf.nest.flatten(outputs)


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("name", NAMES)
def test_loss_depends_on_every_trainable_element(name, mode):
    model = FIXTURES[name]
    touched = gradient_masks(tf.saved_model.load(str(MODELS / name)), model.training(), mode=mode)
    quantify = np.any if name in SOME_ELEMENTS_ONLY else np.all
    for path, elements in touched.items():
        if path in model.no_gradient:
            assert not elements.any(), f"'{path}': {model.no_gradient[path]}"
        else:
            assert quantify(elements), f"'{path}' has no gradient at {np.argwhere(~elements)[:3].tolist()}"


@pytest.mark.parametrize(
    ("name", "call"),
    [
        (name, call)
        for name in NAMES
        for call in FIXTURES[name].others
        if call.function in FIXTURES[name].no_gradient_calls
    ],
)
def test_calls_pinned_as_without_gradient_have_none(name, call):
    loaded = tf.saved_model.load(str(MODELS / name))
    variables = list(trainable_of(loaded).values())
    try:
        with tf.GradientTape() as tape:
            loss = loss_of(function_of(loaded, call.function)(*call.inputs(np.random.default_rng(0), ())))
        gradients = tape.gradient(loss, variables)
    except (LookupError, ValueError, AttributeError) as error:
        found = str(error)
    else:
        found = "" if all(gradient is None for gradient in gradients) else "gradients"
    expected = ERRORS.get(f"{name}/{call.function}", "")
    assert expected in found
    assert bool(expected) == bool(found)


@pytest.mark.parametrize(
    "name", ["embedding", "tied", "gathers", "scan", "layer_norm_transformer", "keras_embedding", "keras_mixed"]
)
def test_batches_can_lack_ids(name):
    full, lacking = (FIXTURES[name].training(lack=lack).batch(0)[0][0].numpy() for lack in ((), (3, 5)))
    assert full.shape == lacking.shape
    assert {3, 5} <= set(full.ravel())
    assert not {3, 5} & set(lacking.ravel())
