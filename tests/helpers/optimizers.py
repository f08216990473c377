"""The optimizers that every promise about training is tried with, each made afresh by a factory."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tests.helpers.training import Gradient, Optimizer


class SparseMomentum:
    """Momentum that touches only the rows looked up: a row that is dragged in without need moves by its history.

    Duplicate ids are summed first. Dense gradients get ordinary momentum.
    """

    def __init__(self, learning_rate: float = 0.05, momentum: float = 0.9) -> None:
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.slots: dict[int, tf.Variable] = {}

    def apply(self, grads: Sequence[Gradient], trainable_variables: Sequence[tf.Variable], /) -> None:
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            slot = self.slots.setdefault(id(variable), tf.Variable(tf.zeros_like(variable), trainable=False))
            if isinstance(gradient, tf.IndexedSlices):
                self._update_rows(gradient, variable, slot)
            elif gradient is not None:
                slot.assign(tf.cast(self.momentum, slot.dtype) * slot + gradient)
                variable.assign_sub(tf.cast(self.learning_rate, slot.dtype) * slot)

    def finalize_variable_values(self, var_list: Sequence[tf.Variable], /) -> None:
        """Nothing is averaged."""

    def _update_rows(self, gradient: tf.IndexedSlices, variable: tf.Variable, slot: tf.Variable) -> None:
        if not int(tf.size(gradient.indices)):
            return
        rows, positions = tf.unique(gradient.indices)
        summed = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(rows))
        history = tf.cast(self.momentum, slot.dtype) * tf.gather(slot, rows) + summed
        slot.scatter_update(tf.IndexedSlices(history, rows))
        variable.scatter_sub(tf.IndexedSlices(tf.cast(self.learning_rate, slot.dtype) * history, rows))


def _keras(name: str, **options: Any) -> Callable[[], Optimizer]:
    def make() -> Optimizer:
        optimizer: Optimizer = getattr(keras.optimizers, name)(**options)
        return optimizer

    return make


OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "sgd": _keras("SGD", learning_rate=0.05),
    "momentum": _keras("SGD", learning_rate=0.05, momentum=0.9),
    "nesterov": _keras("SGD", learning_rate=0.05, momentum=0.9, nesterov=True),
    "adam": _keras("Adam", learning_rate=0.01),
    "adamw": _keras("AdamW", learning_rate=0.01, weight_decay=0.1),
    "adagrad": _keras("Adagrad", learning_rate=0.05),
    "rmsprop": _keras("RMSprop", learning_rate=0.01, momentum=0.9),
    "lion": _keras("Lion", learning_rate=0.005),
    "adam_ema": _keras("Adam", learning_rate=0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=5),
    "adam_clipnorm": _keras("Adam", learning_rate=0.01, global_clipnorm=0.5),
    "ftrl": _keras("Ftrl", learning_rate=0.05, l2_regularization_strength=0.01),
    "sparse_momentum": SparseMomentum,
}

UNSUPPORTED_DTYPES: dict[str, frozenset[str]] = {
    "adam": frozenset({"complex128"}),
    "adamw": frozenset({"complex128"}),
    "adam_ema": frozenset({"complex128"}),
    "adam_clipnorm": frozenset({"complex64", "complex128"}),
    "ftrl": frozenset({"complex64", "complex128"}),
}
"""Keras raises for these, whoever the variable belongs to."""
