"""Small Keras models of every kind, with inputs, targets and a loss; each made afresh, the same at every call."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

NUMBERS = np.random.default_rng(5)
X = NUMBERS.normal(size=(16, 4)).astype(np.float32)
Y = NUMBERS.normal(size=(16, 3)).astype(np.float32)
IDS = NUMBERS.integers(1, 9, size=(16, 5)).astype(np.int32)
IDS[:, 3:] = 0


@dataclass(frozen=True, slots=True)
class Example:
    """A model and how it is called and trained."""

    model: Any
    x: Any = None
    y: Any = None
    freeze: str = "**/kernel[:1]"
    loss: Any = "mse"


def named() -> Example:
    """Nested dictionaries in and out, a loss per output."""
    a, b = keras.Input((4,), name="a"), keras.Input((2,), name="b")
    h = layers.Concatenate()([layers.Dense(3, name="left")(a), layers.Dense(3, name="right")(b)])
    model = keras.Model({"a": a, "b": b}, {"p": layers.Dense(3, name="p")(h), "q": layers.Dense(1, name="q")(h)})
    return Example(model, {"a": X, "b": X[:, :2]}, {"p": Y, "q": Y[:, :1]}, loss={"p": "mse", "q": "mae"})


def listed() -> Example:
    """A list in and out, called by the names of its inputs, and trained by the names of its outputs."""
    model = named().model
    a, b = model.input["a"], model.input["b"]
    model = keras.Model([a, b], [model.output["p"], model.output["q"]])
    return Example(model, {"a": X, "b": X[:, :2]}, [Y, Y[:, :1]], loss={"p": "mse", "q": "mae"})


def masked() -> Example:
    """A mask goes with the outputs, and the loss leaves those steps out."""
    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            layers.Embedding(9, 4, mask_zero=True, name="emb"),
            layers.SimpleRNN(4, return_sequences=True, name="rnn"),
            layers.TimeDistributed(layers.Dense(2), name="head"),
        ]
    )
    return Example(model, IDS, NUMBERS.normal(size=(16, 5, 2)).astype(np.float32), "**/embeddings[:5]")


class Subclassed(keras.Model):
    """Dropout, a loss of its own, a regulariser, and a method that no graph holds."""

    def __init__(self):
        super().__init__(name="net")
        self.hidden = layers.Dense(5, kernel_regularizer="l2", name="hidden")
        self.drop = layers.Dropout(0.3, seed=3)
        self.head = layers.Dense(3, activity_regularizer="l2", name="head")

    def call(self, inputs, training=None):
        h = self.drop(self.hidden(inputs), training=training)
        self.add_loss(0.1 * keras.ops.mean(h**2))
        return self.head(h)

    def features(self, inputs):
        return self.hidden(inputs)


def subclassed() -> Example:
    model = Subclassed()
    model(X)
    return Example(model, X, Y)


def nested() -> Example:
    """A model in a model, twice; one layer that does not train, statistics that do move."""
    base = keras.Sequential(
        [keras.Input((4,)), layers.Dense(4, name="one"), layers.BatchNormalization(name="norm"), layers.Dense(4)],
        name="base",
    )
    base.get_layer("one").trainable = False
    inputs = keras.Input((4,))
    return Example(keras.Model(inputs, layers.Dense(3, name="head")(base(base(inputs)))), X, Y)


def mixed() -> Example:
    """Variables in float32, computation in float16, and a loss that is scaled."""
    policy = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential([keras.Input((4,)), layers.Dense(5, activation="relu"), layers.Dense(3)])
        return Example(model, X, Y)
    finally:
        keras.mixed_precision.set_dtype_policy(policy)


def words() -> Example:
    """A lookup table in the graph, with its vocabulary."""
    inputs = keras.Input((1,), dtype="string")
    ids = layers.StringLookup(vocabulary=["a", "b", "c"])(inputs)
    h = layers.Flatten()(layers.Embedding(6, 3, name="emb")(ids))
    given = tf.constant([["a"], ["c"]] * 8)
    return Example(keras.Model(inputs, layers.Dense(3)(h)), given, Y, "**/embeddings[:2]")


EXAMPLES: dict[str, Callable[[], Example]] = {
    "named": named,
    "listed": listed,
    "masked": masked,
    "subclassed": subclassed,
    "nested": nested,
    "mixed": mixed,
    "words": words,
}


def make(name: str) -> Example:
    """The example with names and numbers that do not depend on what ran before."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(2)
    return EXAMPLES[name]()


def stack() -> Any:
    """Regulariser, normalisation, dropout: what a training mode needs, in a Functional model of Keras's float type."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(2)
    inputs = keras.Input((4,), name="x")
    # Keras holds the factor in float32; this one is exact.
    l2 = keras.regularizers.L2(0.0625)
    h = layers.Dense(6, activation="tanh", kernel_regularizer=l2, name="hidden")(inputs)
    h = layers.BatchNormalization(name="norm")(h)
    h = layers.Dropout(0.3, seed=3, name="drop")(h)
    return keras.Model(inputs, layers.Dense(3, name="head")(h), name="stack")
