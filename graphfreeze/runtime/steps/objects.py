"""TF2 models: the steps as functions and signatures, over the variables that a freeze leaves trainable.

Functions and optimizer state hang under ``graphfreeze/train_step`` of the root: new variables at new paths, so no key
of the model's checkpoint changes. One step takes the gradient of the loss at the trained variables and hands both to an
optimizer of Keras, whose state is part of the model from then on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graphfreeze.errors import NothingToTrainError, UsageError
from graphfreeze.graph.steps import CHILD, STEPS
from graphfreeze.runtime.optimizers import Make, training_optimizer
from graphfreeze.runtime.steps.inputs import Targets
from graphfreeze.runtime.steps.losses import (
    compute,
    targets_like,
)
from graphfreeze.runtime.steps.names import EVALUATE, PATH, RESTORE, SAVE, SCOPE, only_phase
from graphfreeze.runtime.steps.phases import Phase, find_phases, gradients_of
from graphfreeze.runtime.steps.saver import restore_from, save_to, stored


@dataclass(frozen=True, slots=True)
class Built:
    """What was put into a loaded model."""

    signatures: Mapping[str, Any]
    """The new ones: name -> concrete function."""
    trained: Mapping[str, tuple[str, ...]]
    """Signature -> names of the variables that it trains."""
    inputs: Mapping[str, Any]
    """Inputs of ``train``, targets included: name -> ``tf.TensorSpec``."""
    state: tuple[Any, ...]
    """Variables of the optimizers."""
    warnings: tuple[str, ...]


def add_steps(
    loaded: Any, *, loss: str, optimizer: str, function: str | None, targets: Targets | None, shared: bool
) -> Built:
    """Puts the steps under ``loaded.graphfreeze.train_step``.

    Raises:
        UsageError: an option makes no sense for this model.
        NothingToTrainError: nothing is trainable, or the loss depends on nothing that is.
        UnsupportedModelError: TensorFlow has no gradient through the function.
    """
    import tensorflow as tf

    own = [CHILD] if hasattr(loaded, CHILD) else []
    holder = getattr(loaded, CHILD) if own else tf.__internal__.tracking.AutoTrackable()
    if hasattr(holder, STEPS):
        raise UsageError(
            "The model carries training steps already. Take them off with graphfreeze finalize, or start from the "
            "model that they were added to"
        )
    phases = _phases(loaded, function, loss)
    steps = [p.signature for p in phases]
    _refuse_taken(loaded, [*steps, EVALUATE, SAVE, RESTORE])
    optimizers = _optimizers(optimizer, phases, shared)
    seen: dict[int, Any] = {id(o): o for o in optimizers}
    state = tuple(v.value for o in seen.values() for v in o.variables)
    warnings: list[str] = []
    functions: dict[str, Any] = {}
    _refuse_unused(phases, targets)
    for phase, one in zip(phases, optimizers, strict=True):
        inputs = _inputs(phase, targets)
        functions[phase.signature] = _traced(_train(phase, one, inputs, warnings), inputs, phase.signature)
    inputs = _inputs(phases[0], targets)
    functions[EVALUATE] = _traced(_evaluate(phases[0], inputs), inputs, EVALUATE)
    tracked = tf.__internal__.tracking.AutoTrackable()
    tracked.state = list(state)
    setattr(holder, STEPS, tracked)
    if not own:
        setattr(loaded, CHILD, holder)
    variables = stored(loaded, [*loaded.signatures.values(), *functions.values()])
    path = {PATH: tf.TensorSpec([], tf.string, name=PATH)}
    functions[SAVE] = _traced(lambda given: {PATH: save_to(given[PATH], variables)}, path, SAVE)
    functions[RESTORE] = _traced(lambda given: {PATH: restore_from(given[PATH], variables)}, path, RESTORE)
    tracked.functions = dict(functions)
    return Built(
        functions,
        {p.signature: tuple(v.name.removesuffix(":0") for v in p.variables) for p in phases},
        inputs,
        state,
        tuple(warnings),
    )


def _phases(loaded: Any, function: str | None, loss: str) -> list[Phase]:
    """The phases under the names that their signatures get."""
    found = find_phases(loaded, function, loss)
    return [replace(p, name=only_phase(loaded.signatures)) if p.name is None else p for p in found]


def _refuse_taken(loaded: Any, names: Sequence[str]) -> None:
    taken = [n for n in names if n in loaded.signatures]
    if taken:
        raise UsageError(
            f"The model has a signature '{taken[0]}' of its own, and its training steps would take that name. Save it "
            "again without that signature first"
        )


def _optimizers(text: str, phases: Sequence[Phase], shared: bool) -> list[Any]:
    make = training_optimizer(text)
    if shared:
        union = {id(v): v for p in phases for v in p.variables}
        return [_built(make, SCOPE, list(union.values()))] * len(phases)
    scopes = [SCOPE if p.name is None else f"{SCOPE}{p.name}/" for p in phases]
    return [_built(make, scope, list(p.variables)) for scope, p in zip(scopes, phases, strict=True)]


def _built(make: Make, scope: str, variables: list[Any]) -> Any:
    """An optimizer whose state has names in the scope, by which it is known again."""
    import tensorflow as tf

    with tf.name_scope(scope):
        made = make()
        made.build(variables)
    if made.use_ema and not made.ema_overwrite_frequency:
        raise UsageError(
            "With use_ema the averages have to come back into the model, and a program without Python can only leave "
            "that to the step: give ema_overwrite_frequency too"
        )
    return made


def _refuse_unused(phases: Sequence[Phase], targets: Targets | None) -> None:
    if targets is not None and not any(p.loss.needs_targets for p in phases):
        output = phases[0].loss.output
        raise UsageError(f"The loss '{output}' is an output of the function and compares nothing with targets")


def _inputs(phase: Phase, targets: Targets | None) -> dict[str, Any]:
    import tensorflow as tf

    loss, inputs = phase.loss, dict(phase.function.inputs)
    if not loss.needs_targets:
        return inputs
    assert loss.output is not None
    shape, dtype = targets_like(loss, phase.function.outputs[loss.output])
    name = "targets"
    if targets is not None:
        name, shape, dtype = targets.name, list(targets.shape), tf.as_dtype(targets.dtype)
    if name in inputs:
        raise UsageError(
            f"Function '{phase.function.name}' has an input '{name}' of its own. Give the targets another name: "
            "--targets NAME:SHAPE:DTYPE"
        )
    return {**inputs, name: tf.TensorSpec(shape, dtype, name=name)}


def _traced(body: Any, inputs: Mapping[str, Any], name: str) -> Any:
    """The trace of a function of tensors by name."""
    import tensorflow as tf

    def step(**given: Any) -> Any:
        return body(given)

    step.__name__ = name.replace("@", "_")
    function = tf.function(step, autograph=False)
    specs = {key: tf.TensorSpec(spec.shape, spec.dtype, name=key) for key, spec in inputs.items()}
    return function.get_concrete_function(**specs)


def _forward(phase: Phase, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    outputs = phase.function.call({name: given[name] for name in phase.function.inputs})
    (targets,) = [given[name] for name in given if name not in phase.function.inputs] or [None]
    assert phase.loss.output is not None
    return compute(phase.loss, outputs[phase.loss.output], targets)


def _train(phase: Phase, optimizer: Any, inputs: Mapping[str, Any], warnings: list[str]) -> Any:
    import tensorflow as tf

    def body(given: Mapping[str, Any]) -> dict[str, Any]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for variable in phase.variables:
                tape.watch(variable)
            loss, metrics = _forward(phase, given)
        pairs = list(zip(gradients_of(tape, loss, phase), phase.variables, strict=True))
        without = [v.name.removesuffix(":0") for g, v in pairs if g is None]
        if len(without) == len(pairs):
            raise NothingToTrainError(
                f"The loss of '{phase.signature}' depends on no trainable variable. Train through another function, "
                "with --function, or another output"
            )
        warnings.extend(
            f"'{phase.signature}' does not train '{name}': function '{phase.function.name}' does not use it"
            for name in without
            if not any(f"'{name}'" in w for w in warnings)
        )
        pairs = [(g, v) for g, v in pairs if g is not None]
        # Weight decay takes no gradient. Where TensorFlow inlines the function that reads the weights, nothing but this
        # makes it wait for those reads (seen once in 1,800 steps of a Session).
        with tf.control_dependencies([loss, *metrics.values(), *(getattr(g, "values", g) for g, _ in pairs)]):
            optimizer.apply([g for g, _ in pairs], [v for _, v in pairs])
        return {"loss": loss, **metrics}

    return body


def _evaluate(phase: Phase, inputs: Mapping[str, Any]) -> Any:
    def body(given: Mapping[str, Any]) -> dict[str, Any]:
        loss, metrics = _forward(phase, given)
        return {"loss": loss, **metrics}

    return body
