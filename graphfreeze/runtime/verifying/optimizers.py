"""The optimizers that a model is trained with: any of Keras by its name, or a set that covers what moves weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphfreeze.runtime.optimizers import Make, keras_optimizer
from graphfreeze.runtime.verifying.task import ALL


class SparseMomentum:
    """Momentum on the rows that were looked up and no others, so that a row dragged in without need moves."""

    def __init__(self, learning_rate: float = 0.05, momentum: float = 0.9) -> None:
        self.learning_rate, self.momentum = learning_rate, momentum
        self.slots: list[Any] = []

    def build(self, variables: Sequence[Any]) -> None:
        """Makes a slot for each variable."""
        import tensorflow as tf

        self.slots = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """One step."""
        import tensorflow as tf

        for gradient, variable, slot in zip(gradients, variables, self.slots, strict=True):
            rate, momentum = (tf.cast(x, slot.dtype) for x in (self.learning_rate, self.momentum))
            if isinstance(gradient, tf.IndexedSlices):
                rows, places = tf.unique(gradient.indices)
                total = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
                history = momentum * tf.gather(slot, rows) + total
                slot.scatter_update(tf.IndexedSlices(history, rows))
                variable.scatter_sub(tf.IndexedSlices(rate * history, rows))
            elif gradient is not None:
                slot.assign(momentum * slot + gradient)
                variable.assign_sub(rate * slot)

    def finalize_variable_values(self, variables: Sequence[Any]) -> None:
        """Nothing is averaged."""


def make_optimizers(text: str) -> dict[str, Make]:
    """Title -> factory, for an optimizer of Keras (its name in any case, perhaps with arguments) or ``all``.

    Raises:
        UsageError: Keras has no such optimizer; names those that are near.
    """
    import keras

    if text.lower() == ALL:
        return {
            "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
            "sparse momentum": SparseMomentum,
            "decay": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
            "clipping": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5),
            "ema": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=5),
        }
    name, make = keras_optimizer(text, [ALL])
    return {name: make}
