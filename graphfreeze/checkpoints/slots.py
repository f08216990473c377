"""What becomes of an optimizer's slot, the tensor that it keeps for a variable that trains.

A part has the slot's own elements, cut out. On the way back the frozen elements have no history: they get what an
optimizer gives a variable that it sees for the first time. That is zero, but for accumulators that start above zero
and for averages of the variable itself, which start at its value. A checkpoint does not say where accumulators
started; TensorFlow's and Keras's defaults are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from graphfreeze.checkpoints.layout import ModelVariable
from graphfreeze.errors import UnsupportedModelError
from graphfreeze.savedmodel import DTYPE_NUMBERS, NUMPY_DTYPES, Array

_ACCUMULATORS = frozenset({"_accumulators", "accumulators", "accumulator", "accum", "Adagrad", "Ftrl"})
_ACCUMULATED = 0.1
_ONES = frozenset({"RMSProp"})
_AVERAGES = frozenset({"_model_variables_moving_average", "average", "slow", "ExponentialMovingAverage"})


Turned: TypeAlias = tuple[tuple[int, ...], Callable[[], Array]]


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot on its way: whose it is, what the optimizer calls it, and what is stored."""

    variable: ModelVariable
    kind: str
    """The name of the optimizer's list of such slots, the slot's name, or the last part of a name-based key."""
    place: str
    """For messages."""
    shape: tuple[int, ...]
    read: Callable[[], Array]
    effective: Callable[[], Array]
    """The value of the whole variable."""


def into_rewritten(slot: Slot) -> Turned | None:
    """Shape and maker of the slot of what trains in the rewritten model; None where it stays as it is.

    Raises:
        UnsupportedModelError: the slot is not of the variable's shape, and the part's has another.
    """
    variable, part = slot.variable, slot.variable.part
    if part is not None and _follows(slot, variable.shape):
        region = part.region
        assert region is not None
        return region.storage_shape, lambda: region.take(slot.read())
    if variable.live and slot.shape == variable.shape:
        return slot.shape, lambda: _forget(slot)
    return None


def into_original(slot: Slot) -> Turned | None:
    """Shape and maker of the slot of the original variable; None where it stays as it is.

    Raises:
        UnsupportedModelError: the slot is not of the part's shape, and the variable's is another.
    """
    variable, part = slot.variable, slot.variable.part
    if part is not None:
        region = part.region
        assert region is not None
        if _follows(slot, region.storage_shape):
            return variable.shape, lambda: region.put(_fresh_like(slot), slot.read())
    elif variable.frozen is not None and slot.shape == variable.shape:
        return slot.shape, lambda: _forget(slot)
    return None


def new_slot(variable: ModelVariable, kind: str, effective: Callable[[], Array], *, rewritten: bool) -> Array:
    """The slot of a variable that trains in the layout that is made and did not in the other."""
    value = _fresh(variable, kind, effective, NUMPY_DTYPES[DTYPE_NUMBERS[variable.dtype]])
    part = variable.part
    return part.region.take(value) if rewritten and part is not None and part.region is not None else value


def _follows(slot: Slot, shape: tuple[int, ...]) -> bool:
    """Whether a slot is cut and put together as its variable is; a single number belongs to all of it."""
    if slot.shape == shape:
        return True
    if not slot.shape or slot.shape == (1,):
        return False
    raise UnsupportedModelError(
        f"The slot {slot.place} of '{slot.variable.name}' has shape {list(slot.shape)}, expected {list(shape)}: the "
        "optimizer keeps statistics over the whole tensor, which cannot be cut to a part. Leave the optimizer out of "
        "the checkpoint and start it afresh, or rewrite the model with --strategy mask"
    )


def _forget(slot: Slot) -> Array:
    value, frozen = slot.read(), slot.variable.frozen
    assert frozen is not None
    return frozen.put(value, frozen.take(_fresh_like(slot)))


def _fresh_like(slot: Slot) -> Array:
    return _fresh(slot.variable, slot.kind, slot.effective, slot.read().dtype)


def _fresh(variable: ModelVariable, kind: str, effective: Callable[[], Array], dtype: np.dtype[np.generic]) -> Array:
    """A slot of the whole variable as an optimizer makes it."""
    if kind in _AVERAGES:
        return effective().astype(dtype)
    start = _ACCUMULATED if kind in _ACCUMULATORS else 1.0 if kind in _ONES else 0.0
    return np.full(variable.shape, start, dtype)
