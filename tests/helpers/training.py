"""One way to train any loaded model, original or rewritten, so that two runs differ by nothing but the model.

`Training` says how batches and the loss are made; `train` runs steps, eagerly or in a `tf.function`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import tensorflow as tf

Batch = tuple[tuple[tf.Tensor, ...], ...]
"""The inputs of each training call."""
Gradient = Any
"""A tensor, an IndexedSlices, or None."""
Mode = Literal["eager", "function"]


class Optimizer(Protocol):
    """What Keras 3 optimizers offer and the hand-written ones imitate."""

    def apply(self, grads: Sequence[Gradient], trainable_variables: Sequence[tf.Variable], /) -> None: ...

    def finalize_variable_values(self, var_list: Sequence[tf.Variable], /) -> None: ...


@dataclass(frozen=True, slots=True)
class Training:
    """How to train one model."""

    batch: Callable[[int], Batch]
    """The inputs of step n; the same at every call."""
    loss: Callable[[Any, Batch], tf.Tensor]
    """A scalar float64 from the loaded model and a batch."""


def make_gradients(
    training: Training, loaded: Any, variables: Sequence[tf.Variable], mode: Mode
) -> Callable[[int], list[Gradient]]:
    """A function from the step's number to the gradients at these variables.

    TensorFlow: a reloaded loop has gradients in one mode only, whichever ran first on that object;
    load afresh for each mode.
    """

    def compute(batch: Batch) -> list[Gradient]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for variable in variables:
                tape.watch(variable)
            loss = training.loss(loaded, batch)
        gradients: list[Gradient] = tape.gradient(loss, list(variables))
        return gradients

    run = tf.function(compute) if mode == "function" else compute
    return lambda step: list(run(training.batch(step)))


def train(
    training: Training,
    loaded: Any,
    variables: Sequence[tf.Variable],
    optimizer: Optimizer,
    *,
    steps: int = 20,
    mode: Mode = "eager",
) -> None:
    """Plain training: gradients as they come, every variable given to the optimizer."""
    gradients = make_gradients(training, loaded, variables, mode)
    for step in range(steps):
        optimizer.apply(gradients(step), list(variables))
    optimizer.finalize_variable_values(list(variables))
