"""Optimizers by name, and the one of our own."""

import numpy as np
import pytest

from graphfreeze.errors import UsageError


@pytest.mark.tf
def test_names_of_keras_in_any_case():
    from graphfreeze.runtime.verifying.optimizers import make_optimizers

    for name in ("adamw", "SGD", "Adafactor", "muon"):
        ((title, make),) = make_optimizers(name).items()
        assert title == name.lower()
        assert type(make()).__name__.lower() == title


@pytest.mark.tf
def test_the_set():
    from graphfreeze.runtime.verifying.optimizers import make_optimizers

    made = {title: make() for title, make in make_optimizers("all").items()}
    assert list(made) == ["momentum", "sparse momentum", "decay", "clipping", "ema"]
    assert made["momentum"].momentum
    assert made["decay"].weight_decay
    assert made["clipping"].global_clipnorm
    assert made["ema"].use_ema


@pytest.mark.tf
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("adamm", "Keras has no optimizer 'adamm'. Did you mean 'adam' or 'nadam' or 'adamw'?"),
        ("xyz", "Keras has no optimizer 'xyz'. Keras has: adadelta, adafactor, adagrad"),
        ("optimizer", "Keras has no optimizer 'optimizer'"),
    ],
)
def test_another_name(name, words):
    from graphfreeze.runtime.verifying.optimizers import make_optimizers

    with pytest.raises(UsageError) as error:
        make_optimizers(name)
    assert str(error.value).startswith(words)


@pytest.mark.tf
def test_sparse_momentum_leaves_other_rows_alone():
    import tensorflow as tf

    from graphfreeze.runtime.verifying.optimizers import SparseMomentum

    table, dense = tf.Variable(np.ones((3, 1))), tf.Variable(np.ones(2))
    optimizer = SparseMomentum(1.0, 0.5)
    optimizer.build([table, dense])
    first = tf.IndexedSlices(tf.constant([[1.0], [1.0]], tf.float64), tf.constant([1, 1]))
    optimizer.apply([first, tf.ones(2, tf.float64)], [table, dense])
    assert table.numpy().ravel().tolist() == [1, -1, 1]
    optimizer.apply([tf.IndexedSlices(tf.constant([[1.0]], tf.float64), tf.constant([0])), None], [table, dense])
    assert table.numpy().ravel().tolist() == [0, -1, 1]
    assert dense.numpy().tolist() == [0, 0]
