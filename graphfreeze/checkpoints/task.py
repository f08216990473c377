"""A conversion under way: which way it goes, what frozen elements get, and what there is to say about it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from graphfreeze.checkpoints.layout import Layout, ModelVariable, Storage
from graphfreeze.checkpoints.place import not_found
from graphfreeze.errors import UsageError
from graphfreeze.savedmodel import DTYPE_NUMBERS, Array, base_dtype, differing_pieces, dtype_name

Direction: TypeAlias = Literal["into", "from"]
Frozen: TypeAlias = Literal["checkpoint", "model"]
"""Where frozen elements take their values from."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A variable as optimizers know it: the name and node of what of it trains, before and after."""

    variable: ModelVariable
    name_before: str | None
    name_after: str | None
    before: int | None
    after: int | None
    effective: Callable[[], Array]

    @property
    def is_new(self) -> bool:
        """Whether it did not train before."""
        return self.name_before is None


@dataclass(slots=True)
class Task:
    """What was asked for, and what was found out while it was done."""

    prefix: Path
    layout: Layout
    into: bool
    frozen: Frozen
    slots: int = 0
    """Slots that were cut, put together, or reset in part."""
    dropped: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    differing: dict[str, int] = field(default_factory=dict)
    """Variable -> frozen elements whose value in the checkpoint is not the rewritten model's."""

    def check_found(self, orders: Collection[int], names: Sequence[str]) -> None:
        """Refuses a checkpoint without the variables that the freeze stores elsewhere.

        Raises:
            NoMatchError: it holds none of the model's variables.
        """
        if not orders:
            model = self.layout.draft.model.directory
            what = f"the original of '{model}'" if self.into else f"'{model}'"
            raise not_found(self.prefix, [v.name for v in self.layout.variables], names, what)

    def check_layout(self, rewritten: bool) -> None:
        """Refuses a checkpoint that already is what is asked for.

        Raises:
            UsageError: it is a checkpoint of the other layout.
        """
        if rewritten == self.into:
            is_of, option = ("the rewritten model", "--from") if self.into else ("the original model", "--into")
            raise UsageError(
                f"'{self.prefix}' is a checkpoint of {is_of} already. "
                f"To convert it the other way, give {option} instead of {'--into' if self.into else '--from'}"
            )

    def check_fits(self, variable: ModelVariable, shape: tuple[int, ...], data_type: int) -> None:
        """Refuses a value of another shape or type than the model's variable.

        Raises:
            UsageError: it has.
        """
        found = dtype_name(base_dtype(data_type)), list(shape)
        expected = dtype_name(DTYPE_NUMBERS[variable.dtype]), list(variable.shape)
        if found != expected:
            raise UsageError(
                f"'{self.prefix}' does not fit the model: '{variable.name}' is {found[0]} {found[1]} there, expected "
                f"{expected[0]} {expected[1]}. Give a checkpoint of the model that was rewritten"
            )

    def compare(self, variable: ModelVariable, value: Array, *, held: bool) -> None:
        """Counts frozen elements that the checkpoint and the rewritten model have at different values."""
        frozen = variable.frozen
        if frozen is None:
            return
        pieces = differing_pieces(value, self.frozen_value(variable))
        count = sum(int(np.count_nonzero(frozen.contains(places))) for places, _, _ in pieces)
        if count:
            self.differing[variable.name] = count
            if not held:
                self.frozen = "model"

    def frozen_value(self, variable: ModelVariable) -> Array:
        """The effective value in the rewritten model, at frozen elements."""
        value = self.layout.stored(variable.key)
        for storage in (s for s in variable.held if not s.trainable):
            assert storage.region is not None
            value = storage.region.put(value, self.layout.stored(storage.key))
        return value

    def base_content(self, variable: ModelVariable, value: Callable[[], Array]) -> Callable[[], Array] | None:
        """What the original variable holds in the rewritten layout; None where it is what the checkpoint has."""
        frozen = variable.frozen
        if self.frozen == "checkpoint" or frozen is None or not self.differing.get(variable.name):
            return None
        return lambda: frozen.put(value(), frozen.take(self.frozen_value(variable)))

    def storage_content(
        self, variable: ModelVariable, storage: Storage, value: Callable[[], Array]
    ) -> Callable[[], Array]:
        """What a new variable holds."""
        region = storage.region
        if region is None or (self.frozen == "model" and not storage.trainable):
            return lambda: self.layout.stored(storage.key)
        return lambda: region.take(value())
