"""The oracle keeps its own promises: constants stay, nothing frozen is plain training, storages agree."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.compare import assert_all_bits_equal, assert_bits_equal, assert_within_eps
from tests.helpers.models import FIXTURES, assert_depends
from tests.helpers.optimizers import OPTIMIZERS, UNSUPPORTED_DTYPES
from tests.helpers.oracle import Frozen, Oracle, box_of
from tests.helpers.training import train
from tests.helpers.variables import find_variable, trainable_of, values_of

pytestmark = pytest.mark.tf

MODELS = Path(__file__).resolve().parents[2] / "fixtures" / "models"
STEPS = 4
OPTIMIZER_OF = {"shapes": "sgd", "dtypes": "momentum"}
"""Keras has no slots for a variable without static shape, and no Adam in complex128, in the original neither."""


def load(name):
    return tf.saved_model.load(str(MODELS / name))


def mask_of(variable, *index):
    mask = np.zeros(variable.shape.as_list(), bool)
    mask[index] = True
    return mask


def run(name, frozen, optimizer, mode="eager", lack=()):
    oracle = Oracle(load(name), frozen, FIXTURES[name].training(lack=lack), mode)
    oracle.train(OPTIMIZERS[optimizer](), STEPS)
    return oracle


@pytest.mark.parametrize("storage", ["split", "mask"])
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_frozen_elements_are_constant_and_others_move(optimizer, storage):
    table = find_variable(load("tied"), "table")
    mask = mask_of(table, slice(0, 9))
    oracle = run("tied", {"table": Frozen(mask, storage)}, optimizer)
    effective, before = oracle.effective()["table"], table.numpy()
    assert_bits_equal(effective[mask], before[mask])
    assert (effective != before)[9:].any(axis=1).all()
    assert_bits_equal(find_variable(oracle.loaded, "table").numpy(), effective)


@pytest.mark.parametrize(
    ("name", "mode"),
    [*((name, "eager") for name in FIXTURES), *((name, "function") for name in ("loop", "scan"))],
)
def test_nothing_frozen_is_plain_training_bit_for_bit(name, mode):
    optimizer = OPTIMIZER_OF.get(name, "adamw")
    plain = load(name)
    variables = trainable_of(plain)
    train(FIXTURES[name].training(), plain, list(variables.values()), OPTIMIZERS[optimizer](), steps=STEPS, mode=mode)
    empty = {path: Frozen(np.zeros(v.numpy().shape, bool), "mask") for path, v in variables.items()}
    oracle = run(name, empty, optimizer, mode)
    assert_all_bits_equal(oracle.effective(), {path: v.numpy() for path, v in variables.items()})
    assert_all_bits_equal(values_of(oracle.loaded), values_of(plain))


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_nothing_frozen_is_plain_training_with_every_optimizer(optimizer):
    plain = load("embedding")
    variables = list(trainable_of(plain).values())
    train(FIXTURES["embedding"].training(), plain, variables, OPTIMIZERS[optimizer](), steps=STEPS)
    empty = {"emb/embeddings": Frozen(np.zeros((12, 4), bool), "mask")}
    assert_all_bits_equal(values_of(run("embedding", empty, optimizer).loaded), values_of(plain))


@pytest.mark.parametrize("name", ["embedding", "scan"])
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_split_and_mask_agree(name, optimizer):
    path = next(iter(trainable_of(load(name))))
    mask = mask_of(find_variable(load(name), path), slice(None, None, 2))
    split, masked = (run(name, {path: Frozen(mask, storage)}, optimizer) for storage in ("split", "mask"))
    for key, value in split.effective().items():
        assert_within_eps(masked.effective()[key], value, key)


def test_sparse_gradients_stay_sparse_with_rows_of_trainable_ids_only():
    lack = {11}
    for storage, wanted in (("split", [0, 1]), ("mask", [9, 10])):
        frozen = {"emb/embeddings": Frozen(mask_of(tf.zeros([12, 4]), slice(0, 9)), storage)}
        oracle = Oracle(load("embedding"), frozen, FIXTURES["embedding"].training(lack=lack))
        gradient = oracle.gradients(0)["embeddings"]
        assert isinstance(gradient, tf.IndexedSlices)
        assert sorted(set(gradient.indices.numpy().tolist())) == wanted


@pytest.mark.parametrize("storage", ["split", "mask"])
def test_sparse_momentum_leaves_rows_alone_that_no_batch_holds(storage):
    frozen = {"emb/embeddings": Frozen(mask_of(tf.zeros([12, 4]), slice(0, 9)), storage)}
    before = find_variable(load("embedding"), "emb/embeddings").numpy()
    after = run("embedding", frozen, "sparse_momentum", lack={11}).effective()["embeddings"]
    assert_bits_equal(after[[*range(9), 11]], before[[*range(9), 11]])
    assert (after[9:11] != before[9:11]).all()


def test_stop_takes_the_variable_away_from_the_optimizer():
    oracle = run("mlp", {"dense_0/kernel": Frozen(np.ones((6, 8), bool), "stop")}, "adamw")
    assert "dense_0/kernel" not in oracle.trainable
    assert_bits_equal(find_variable(oracle.loaded, "dense_0/kernel").numpy(), values_of(load("mlp"))["dense_0/kernel"])


def test_global_norm_sees_trainable_elements_only():
    """One trainable bias entry alone: its gradient is clipped to the norm by itself, whatever the others would be."""
    frozen = {path: Frozen(np.ones(v.shape.as_list(), bool), "stop") for path, v in trainable_of(load("mlp")).items()}
    frozen["out/bias"] = Frozen(np.array([True, True, False]), "split")
    oracle = Oracle(load("mlp"), frozen, FIXTURES["mlp"].training())
    gradients = [gradient.numpy() for gradient in oracle.gradients(0).values()]
    assert [gradient.shape for gradient in gradients] == [(1,)]


def test_frozen_nan_and_negative_zero_keep_their_bits():
    loaded = load("mlp")
    bias = find_variable(loaded, "out/bias")
    bias.assign([-0.0, np.inf, 0.5])
    frozen = {"out/bias": Frozen(np.array([True, True, False]), "mask")}
    oracle = Oracle(loaded, frozen, FIXTURES["mlp"].training())
    assert_bits_equal(oracle.effective()["out/bias"], bias.numpy())
    assert_bits_equal(oracle.gradients(0)["out/bias"].numpy()[:2], np.zeros(2, np.float32))


def test_box_of_refuses_what_is_no_box():
    assert [axis.tolist() for axis in box_of(np.array([[0, 1, 0, 1], [0, 1, 0, 1]], bool))] == [[0, 1], [1, 3]]
    with pytest.raises(ValueError, match="'mask'"):
        box_of(np.eye(2, dtype=bool))
    with pytest.raises(ValueError, match="'mask'"):
        box_of(np.zeros((2, 2), bool))


def test_the_loss_depends_on_the_elements_that_the_tests_freeze():
    table = np.ones((12, 4), bool)
    assert_depends(load("tied"), FIXTURES["tied"].training(), {"table": table})
    with pytest.raises(AssertionError, match="does not depend on 4 elements of 'embeddings'"):
        assert_depends(load("embedding"), FIXTURES["embedding"].training(lack={2}), {"embeddings": table})


def test_the_table_of_unsupported_dtypes_is_true():
    variables = {str(v.dtype.name): v for v in trainable_of(load("dtypes")).values()}
    for optimizer, make in OPTIMIZERS.items():
        for dtype, variable in variables.items():
            if dtype in UNSUPPORTED_DTYPES.get(optimizer, ()):
                with pytest.raises((tf.errors.OpError, TypeError)):
                    make().apply([tf.ones_like(variable)], [variable])
            else:
                make().apply([tf.ones_like(variable)], [variable])


def test_the_oracle_imports_nothing_of_graphfreeze():
    """In a process of its own: nothing that the oracle draws in may come from what it judges."""
    code = (
        "import sys; from tests.helpers import compare, functions, models, optimizers, oracle, training, variables; "
        "sys.exit(any(name.split('.')[0] == 'graphfreeze' for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=MODELS.parents[1], check=True)
