"""What a phase trains: which variables, through which function, with which loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphfreeze.errors import NothingToTrainError, UsageError
from graphfreeze.runtime.loaded import trainable_variables
from graphfreeze.runtime.steps.inputs import Function, find_function
from graphfreeze.runtime.steps.losses import Loss, choose_output, is_probability, parse_loss


@dataclass(frozen=True, slots=True)
class Phase:
    """One kind of step."""

    name: str | None
    """None is a model without phases."""
    variables: tuple[Any, ...]
    function: Function
    loss: Loss

    @property
    def title(self) -> str:
        """For messages."""
        return "Training" if self.name is None else f"Phase '{self.name}'"


def find_phase(loaded: Any, name: str | None, function: str | None, loss: str) -> Phase:
    """The phase of this name. Where a model carries no freeze, all that the function trains is trained.

    Raises:
        UsageError: the model has no such phase or function, or the loss does not fit it.
        NothingToTrainError: nothing is trainable.
    """
    if name is not None:
        raise UsageError(f"The model has no phase '{name}': it carries no phases. Give a number of epochs only")
    found = find_function(loaded, function)
    frozen = hasattr(getattr(loaded, "graphfreeze", None), "info")
    variables = tuple(trainable_variables(loaded)) if frozen else found.trainable
    if not variables:
        raise NothingToTrainError(
            f"Function '{found.name}' holds no trainable variable, so there is nothing to train. Look at them with: "
            "graphfreeze inspect MODEL"
        )
    return Phase(name, variables, found, _resolved(parse_loss(loss), found))


def _resolved(loss: Loss, function: Function) -> Loss:
    """The same with the loss's output named, and said whether that is a probability."""
    name = choose_output(loss, function.outputs, f"Function '{function.name}'")
    logits = loss.from_logits
    if logits is None:
        logits = not is_probability(function.makers(name))
    return Loss(loss.kind, name, logits)
