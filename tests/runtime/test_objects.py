"""What ``freeze`` refuses, in which words, and that it starts nothing to find out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import graphfreeze
from graphfreeze.errors import UsageError
from graphfreeze.runtime.objects import own_methods
from tests.conftest import MODELS

ACCEPTED = "what tf.saved_model.load returned, a tf.Module, or a Keras 3 model"


def words(model):
    with pytest.raises(UsageError) as error:
        graphfreeze.freeze(model, freeze="**")
    return str(error.value)


@pytest.mark.parametrize("path", ["models/net", Path("models/net"), b"models/net"])
def test_a_path(path):
    assert words(path) == (
        "freeze takes an object, but 'models/net' is a path. For a SavedModel on disk use graphfreeze.rewrite(model, "
        "out, ...), or give what tf.saved_model.load returns for it"
    )


def test_other_objects():
    assert words(3) == f"freeze takes {ACCEPTED}, found an object of class 'builtins.int'"
    assert words(Path) == f"freeze takes {ACCEPTED}, found the class 'Path'"


def test_finalize_into_of_another_object():
    with pytest.raises(UsageError) as error:
        graphfreeze.finalize_into(3)
    assert str(error.value) == (
        "This object does not come from graphfreeze.freeze, so there is no object to copy into. For a SavedModel on "
        "disk use graphfreeze.finalize(model, out)"
    )


def run(code):
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(MODELS.parents[1])}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout.splitlines()[-1]


REFUSED = """
import sys
import graphfreeze
try:
    graphfreeze.freeze(object(), freeze="**")
except graphfreeze.UsageError as error:
    print(error)
assert not {"tensorflow", "keras"} & set(sys.modules)
"""


def test_a_refusal_starts_nothing():
    assert run(REFUSED) == f"freeze takes {ACCEPTED}, found an object of class 'builtins.object'"


@pytest.mark.tf
def test_another_backend(monkeypatch):
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    monkeypatch.setattr("keras.backend.backend", lambda: "torch")
    assert words(model) == (
        "Keras runs on backend 'torch' here, and a graph can be frozen on 'tensorflow' only. Set "
        "KERAS_BACKEND=tensorflow before Keras is imported, and load the model there"
    )


@pytest.mark.tf
def test_what_tensorflow_and_keras_offer_besides():
    import keras
    import tensorflow as tf
    import tf_keras

    assert words(tf.Variable(1.0)).startswith(f"freeze takes {ACCEPTED}, found an object of class 'tensorflow.")
    assert words(tf.function(lambda x: x)).startswith(f"freeze takes {ACCEPTED}, found an object of class 'tensorflow.")
    assert words(keras.Model) == f"freeze takes {ACCEPTED}, found the class 'Model'"
    assert words(keras.layers.Dense(3)) == (
        f"freeze takes {ACCEPTED}, found a Keras layer, an object of class 'keras.src.layers.core.dense.Dense'. Make a "
        "model of it, for instance with keras.Sequential([keras.Input(...), layer])"
    )
    assert words(tf_keras.Sequential()) == (
        f"freeze takes {ACCEPTED}, found a model of tf_keras (Keras 2), an object of class "
        "'tf_keras.src.engine.sequential.Sequential'. Save it with tf.saved_model.save and give what "
        "tf.saved_model.load returns for it"
    )


class Base:
    def shared(self): ...

    def _hidden(self): ...

    value = 3


class Derived(Base):
    def __call__(self): ...

    @staticmethod
    def helper(): ...

    def known(self): ...

    class Inner: ...


def test_own_methods_are_public_and_plain():
    assert own_methods(Derived(), ("tensorflow",), frozenset({"known"})) == ["shared", "__call__", "helper"]
    assert own_methods(Derived(), ("tests", Base.__module__.split(".")[0]), frozenset()) == []
