"""One step of training as a function of TensorFlow, and the optimizers whose state the steps change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphfreeze.errors import NothingToTrainError, UsageError
from graphfreeze.graph.randomness import random_nodes
from graphfreeze.runtime.looping.columns import Wanted
from graphfreeze.runtime.optimizers import training_optimizer
from graphfreeze.runtime.steps.losses import compute, targets_like
from graphfreeze.runtime.steps.phases import Phase, gradients_of

TARGETS = "targets"


@dataclass(frozen=True, slots=True)
class Step:
    """A step of one phase: gradients first, then what the optimizer makes of them.

    In two functions, because within one TensorFlow lets the optimizer write while an inlined function of a loaded model
    may still have to read: rarely, and by a rounding or by a whole decay.
    """

    phase: Phase
    optimizer: Any
    gradients: Any
    """Takes tensors by name, gives gradients and (loss and metrics by name)."""
    update: Any
    """Takes gradients."""
    untrained: tuple[str, ...]
    """Variables of the phase that the loss does not depend on."""

    def make(self, batch: Mapping[str, Any]) -> dict[str, float]:
        """One step; the loss and metrics of before it."""
        gradients, values = self.gradients(**batch)
        found = {key: float(value) for key, value in values.items()}
        if math.isfinite(found["loss"]):
            self.update(gradients)
        return found

    def randomness(self) -> tuple[list[str], list[str]]:
        """Ops whose random numbers come from a counter that nothing can restore: without a seed, and with one."""
        nodes = list(random_nodes(self.gradients.graph.as_graph_def()))
        return [text for text, seeded in nodes if not seeded], [text for text, seeded in nodes if seeded]


def make_optimizers(text: str, phases: Mapping[str | None, Phase], shared: bool) -> dict[str | None, Any]:
    """An optimizer for each phase with state of its own, or one over the union of what they train.

    Raises:
        UsageError: Keras has no such optimizer or argument, or runs on something else than TensorFlow.
    """
    make = training_optimizer(text)
    if shared:
        one = make()
        one.build(list({id(v): v for phase in phases.values() for v in phase.variables}.values()))
        return dict.fromkeys(phases, one)
    found = {name: make() for name in phases}
    for name, phase in phases.items():
        found[name].build(list(phase.variables))
    return found


def wanted_of(phases: Iterable[Phase]) -> list[Wanted]:
    """What the steps of all phases take, in the order of the function's inputs, targets last.

    Raises:
        UsageError: the function has an input that is called as the targets are, or phases need other targets.
    """
    every = list(phases)
    phase = next((p for p in every if p.loss.needs_targets), every[0])
    inputs = {name: (spec.shape, spec.dtype) for name, spec in phase.function.inputs.items()}
    if phase.loss.needs_targets:
        if TARGETS in inputs:
            raise UsageError(
                f"Function '{phase.function.name}' has an input '{TARGETS}' of its own, and the loss needs targets "
                "beside it. Train through an output that is the loss: --loss OUTPUT"
            )
        shape, dtype = _targets(phase)
        other = next((p for p in every if p.loss.needs_targets and _targets(p) != (shape, dtype)), None)
        if other is not None:
            raise UsageError(
                f"{phase.title} compares with targets of shape {shape} and dtype {dtype.name}, and "
                f"{other.title.lower()} with others, but there is one set of data. Train them in two runs"
            )
        import tensorflow as tf

        inputs[TARGETS] = (tf.TensorShape(shape), dtype)
    return [
        Wanted(
            name,
            None if shape.rank is None else tuple(shape.as_list()),
            np.dtype(dtype.as_numpy_dtype),
        )
        for name, (shape, dtype) in inputs.items()
    ]


def _targets(phase: Phase) -> tuple[Any, Any]:
    assert phase.loss.output is not None
    shape, dtype = targets_like(phase.loss, phase.function.outputs[phase.loss.output])
    return shape, dtype


def make_step(phase: Phase, optimizer: Any, wanted: Iterable[Wanted]) -> Step:
    """Traces a step.

    Raises:
        NothingToTrainError: the loss depends on nothing that the phase trains.
        UnsupportedModelError: TensorFlow has no gradient through the function.
    """
    import tensorflow as tf

    specs = {one.name: tf.TensorSpec(one.shape, tf.as_dtype(one.dtype), name=one.name) for one in wanted}
    untrained: list[str] = []

    trained: list[Any] = []

    def gradients(**given: Any) -> tuple[list[Any], dict[str, Any]]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for variable in phase.variables:
                tape.watch(variable)
            outputs = phase.function.call({name: given[name] for name in phase.function.inputs})
            assert phase.loss.output is not None
            loss, metrics = compute(phase.loss, outputs[phase.loss.output], given.get(TARGETS))
        pairs = list(zip(gradients_of(tape, loss, phase), phase.variables, strict=True))
        trained[:] = [v for g, v in pairs if g is not None]
        untrained[:] = [v.name.removesuffix(":0") for g, v in pairs if g is None]
        if not trained:
            raise NothingToTrainError(
                f"{phase.title} would change nothing: the loss depends on no trainable variable. Train through another "
                "function, with --function, or another output"
            )
        return [g for g, _ in pairs if g is not None], {"loss": loss, **metrics}

    concrete = tf.function(gradients, autograph=False).get_concrete_function(**specs)
    kinds = [_spec_of(g, v) for g, v in zip(concrete.structured_outputs[0], trained, strict=True)]
    update = tf.function(lambda found: optimizer.apply(found, trained), input_signature=[kinds], autograph=False)
    return Step(phase, optimizer, concrete, update.get_concrete_function(), tuple(untrained))


def _spec_of(gradient: Any, variable: Any) -> Any:
    import tensorflow as tf

    if not isinstance(gradient, tf.IndexedSlices):
        return tf.TensorSpec(gradient.shape, gradient.dtype)
    dense = None if gradient.dense_shape is None else gradient.dense_shape.dtype
    return tf.IndexedSlicesSpec(variable.shape, gradient.dtype, gradient.indices.dtype, dense, [None])
