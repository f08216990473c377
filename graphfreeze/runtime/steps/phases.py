"""What a step trains: which variables, through which function, with which loss; in every phase, if there are any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphfreeze.errors import NothingToTrainError, UnsupportedModelError, UsageError
from graphfreeze.graph.steps import CHILD
from graphfreeze.runtime.loaded import phase_records, trainable_variables
from graphfreeze.runtime.specs import one_line
from graphfreeze.runtime.steps.inputs import Function, find_function
from graphfreeze.runtime.steps.losses import Loss, choose_output, is_probability, parse_loss
from graphfreeze.runtime.steps.names import train_signature


@dataclass(frozen=True, slots=True)
class Phase:
    """One kind of step."""

    name: str | None
    """None is a model without phases."""
    variables: tuple[Any, ...]
    function: Function
    loss: Loss

    @property
    def signature(self) -> str:
        """Name of the signature that makes one step."""
        return train_signature(self.name)

    @property
    def title(self) -> str:
        """For messages."""
        return "Training" if self.name is None else f"Phase '{self.name}'"


def find_phases(loaded: Any, function: str | None, loss: str) -> list[Phase]:
    """Every phase of a model, in order; a nameless one where it has none.

    Raises:
        UsageError: there is no such function, or the loss does not fit it.
        NothingToTrainError: nothing is trainable.
    """
    names = [record["name"] for record in phase_records(loaded)] or [None]
    return [find_phase(loaded, name, function, loss) for name in names]


def find_phase(loaded: Any, name: str | None, function: str | None, loss: str) -> Phase:
    """The phase of this name. Where a model carries no freeze, all that the function trains is trained.

    A phase that names a loss of its own has that one.

    Raises:
        UsageError: the model has no such phase or function, or the loss does not fit it.
        NothingToTrainError: nothing is trainable.
    """
    records = {record["name"]: record for record in phase_records(loaded)}
    if name not in records and (records or name is not None):
        raise _no_phase(name, list(records))
    own = None if name is None else records[name]["loss"]
    found = find_function(loaded, function, name)
    frozen = hasattr(getattr(loaded, CHILD, None), "info")
    variables = tuple(trainable_variables(loaded, phase=name)) if frozen else found.trainable
    if not variables:
        raise NothingToTrainError(
            f"Function '{found.name}' holds no trainable variable, so there is nothing to train. Look at them with: "
            "graphfreeze inspect MODEL"
        )
    return Phase(name, variables, found, _resolved(parse_loss(own or loss), found))


def gradients_of(tape: Any, loss: Any, phase: Phase) -> list[Any]:
    """The gradient at each variable of the phase, None where the loss does not depend on it.

    Raises:
        UnsupportedModelError: TensorFlow has no gradient through the function.
    """
    try:
        found: list[Any] = tape.gradient(loss, list(phase.variables))
    except (LookupError, ValueError) as error:
        raise UnsupportedModelError(
            f"TensorFlow has no gradient through function '{phase.function.name}': {one_line(error)}. See what stands "
            "in the way with: graphfreeze inspect MODEL --deep"
        ) from error
    return found


def _no_phase(name: str | None, known: list[str]) -> UsageError:
    if not known:
        return UsageError(f"The model has no phase '{name}': it carries no phases. Give a number of epochs only")
    names = ", ".join(f"'{n}'" for n in known)
    if name is None:
        example = ",".join(f"{n}:1" for n in known)
        return UsageError(
            f"The model has the phases {names}. Say how many epochs each is trained, for example {example}"
        )
    return UsageError(f"The model has no phase '{name}'. It has {names}")


def _resolved(loss: Loss, function: Function) -> Loss:
    """The same with the loss's output named, and said whether that is a probability."""
    name = choose_output(loss, function.outputs, f"Function '{function.name}'")
    logits = loss.from_logits
    if logits is None:
        logits = not is_probability(function.makers(name))
    return Loss(loss.kind, name, logits)
