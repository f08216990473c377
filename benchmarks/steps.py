"""One variant of a benchmark: a traced training step of a loaded model, or of one of its phases."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import graphfreeze


class Step:
    """One variant: a traced training step and how often it runs per round."""

    def __init__(
        self, model: Path, loss: Callable[[Any], tf.Tensor], slice_seconds: float, phase: str | None = None
    ) -> None:
        loaded = whole = tf.saved_model.load(str(model))
        if phase is None:
            variables = trainable(loaded)
        else:
            loaded = getattr(whole.graphfreeze.phases, phase)
            variables = graphfreeze.trainable_variables(whole, phase=phase)
        self._model = whole
        self.optimizer = keras.optimizers.Adam(1e-4)
        if variables:
            self.optimizer.build(variables)

        def step() -> tf.Tensor:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                for variable in variables:
                    tape.watch(variable)
                value = loss(loaded)
            # Where nothing is left to train, a step is the forward pass.
            pairs = zip(tape.gradient(value, variables), variables, strict=True) if variables else ()
            pairs = [(g, v) for g, v in pairs if g is not None]
            if pairs:
                self.optimizer.apply_gradients(pairs)
            return value

        self._step = tf.function(step)
        for _ in range(3 if slice_seconds else 1):
            self._step().numpy()
        self._count = max(1, min(200, round(slice_seconds / self())))

    _count = 1

    def __call__(self) -> float:
        """Seconds per step."""
        begin = time.perf_counter()
        for _ in range(self._count):
            value = self._step()
        value.numpy()
        return (time.perf_counter() - begin) / self._count

    def slots(self) -> list[list[int]]:
        """Shapes of the optimizer's slots."""
        return [list(v.shape) for v in self.optimizer.variables if v.name not in ("iteration", "learning_rate")]


def trainable(loaded: Any) -> list[tf.Variable]:
    """What the loaded functions use and plain training would train."""
    found: dict[int, tf.Variable] = {}
    seen, pending = set(), [loaded]
    while pending:
        thing = pending.pop(0)
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        for function in getattr(thing, "concrete_functions", None) or ():
            found |= {id(v): v for v in function.variables if v.trainable and v.dtype.is_floating}
        if hasattr(thing, "_trackable_children") and not isinstance(thing, tf.Variable):
            pending += thing._trackable_children().values()
    return list(found.values())
