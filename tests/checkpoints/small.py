"""A small model with a sparse lookup, optimizers of every kind, and training in which frozen elements are constants."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import graphfreeze
from tests.helpers.variables import Array

RULES = {
    "split": {"freeze": ["table[:5]", "bias[1:]", "scale"]},
    "mask": {"freeze": ["kernel[[0, 2, 3], [1, 1, 2]]", "table[::2]"], "strategy": "mask"},
    "live": {"freeze": ["kernel[[0, 2, 3], [1, 1, 2]]", "bias[1]"], "strategy": "mask", "copy": "live"},
    "strict": {"freeze": ["bias", "table"], "strategy": "stop", "strict": True},
    "mixed": {"freeze": ["table[:5]", "kernel[[0, 2, 3], [1, 1, 2]]", "bias"]},
    "enabled": {"freeze": ["table[:5]"], "train": ["held[1:]"], "enable": True},
}


class Model(tf.Module):
    """Attributes do not stand in alphabetical order, and one variable does not train."""

    def __init__(self) -> None:
        super().__init__()
        generator = np.random.default_rng(0)
        self.table = tf.Variable(generator.normal(size=(8, 4)).astype(np.float32), name="table")
        self.kernel = tf.Variable(generator.normal(size=(4, 3)).astype(np.float32), name="layer/kernel")
        self.bias = tf.Variable(generator.normal(size=3).astype(np.float32), name="layer/bias")
        self.scale = tf.Variable(generator.normal(size=3).astype(np.float32), name="scale")
        self.held = tf.Variable(generator.normal(size=3).astype(np.float32), name="held", trainable=False)

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int32)])
    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        rows = tf.reduce_mean(tf.nn.embedding_lookup(self.table, ids), axis=1)
        return tf.tanh(rows @ self.kernel + self.bias) * self.scale + self.held


NAMES = ("table", "kernel", "bias", "scale", "held")


def save_model(folder: Path) -> Path:
    tf.saved_model.save(Model(), str(folder))
    return folder


def masks(rule: Mapping[str, Any]) -> dict[str, Array]:
    """Frozen elements by attribute, written out by hand from the rules above."""
    shapes = {"table": (8, 4), "kernel": (4, 3), "bias": (3,), "scale": (3,), "held": (3,)}
    found = {name: np.zeros(shape, bool) for name, shape in shapes.items()}
    found["held"][:] = True
    for text in rule["freeze"]:
        name, _, index = text.partition("[")
        if index == "[0, 2, 3], [1, 1, 2]]":
            found[name][[0, 2, 3], [1, 1, 2]] = True
        else:
            found[name][_slice(index)] = True
    for text in rule.get("train", ()):
        name, _, index = text.partition("[")
        found[name][_slice(index)] = False
    return found


def _slice(index: str) -> Any:
    if not index:
        return ...
    parts = [int(p) if p else None for p in index.rstrip("]").split(":")]
    return parts[0] if len(parts) == 1 else slice(*parts)


def source_variables(model: Any, rule: Mapping[str, Any]) -> list[tf.Variable]:
    """What one trains of the original."""
    return [model.table, model.kernel, model.bias, model.scale]


Apply = Callable[[Sequence[Any], Sequence[tf.Variable]], None]


def apply_with(optimizer: Any) -> Apply:
    def apply(gradients: Sequence[Any], variables: Sequence[tf.Variable]) -> None:
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    return apply


def train(model: Any, variables: Sequence[tf.Variable], apply: Apply, steps: range, held: Any = None) -> None:
    """Plain steps; ``held`` (variable, mask, value) are put back after each, which makes them constants.

    The optimizers here work element by element, so what it does to elements that are put back changes no other.
    """
    for step in steps:
        ids = np.random.default_rng([7, step]).integers(0, 8, (6, 3)).astype(np.int32)
        with tf.GradientTape() as tape:
            tape.watch(variables)
            loss = tf.reduce_sum((model(ids) - 0.3) ** 2.0)
        apply(tape.gradient(loss, list(variables)), variables)
        for variable, mask, value in held or ():
            variable.assign(np.where(mask, value, variable.numpy()))


def values(model: Any) -> dict[str, Array]:
    return {name: np.array(getattr(model, name).numpy()) for name in NAMES}


def effective(model: Any) -> dict[str, Array]:
    """The effective values of a rewritten model."""
    names = {"kernel": "layer/kernel", "bias": "layer/bias"}
    return {name: np.array(graphfreeze.value(model, names.get(name, name))) for name in NAMES}
