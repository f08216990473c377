"""The options of a run, checked before TensorFlow starts, and what makes two runs the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from graphfreeze.errors import UsageError

Phases = int | Iterable[tuple[str | None, int]] | None
Plan = tuple[tuple[str | None, int], ...]
"""Phases in the order in which they are trained, with their epochs."""
_EXAMPLE = "Write for example 'head:3,all:10', or '10' for a model without phases"


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for."""

    model: str
    plan: Plan
    loss: str
    optimizer: str
    function: str | None
    batch: int
    seed: int
    shuffle: bool
    shared: bool
    every: int | None
    """Steps between two checkpoints; None makes them at the end of phases only."""
    keep: int

    def identity(self, model_digest: str, data: str) -> dict[str, Any]:
        """What has to be equal for a run to go on: everything that its result depends on."""
        return {
            "model": model_digest,
            "phases": [list(row) for row in self.plan],
            "loss": self.loss,
            "optimizer": self.optimizer,
            "function": self.function,
            "data": data,
            "batch": self.batch,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "shared_state": self.shared,
        }


def parse_phases(text: str) -> Plan:
    """``NAME:EPOCHS,...``, or a number of epochs.

    >>> parse_phases("head:3,all:10")
    (('head', 3), ('all', 10))

    Raises:
        UsageError: it is neither.
    """
    found: list[tuple[str | None, int]] = []
    for part in text.split(","):
        name, colon, count = part.strip().rpartition(":")
        if not count.isdecimal() or (colon and not name) or (not colon and "," in text):
            raise UsageError(f"'{text}' does not say which phases to train for how long. {_EXAMPLE}")
        found.append((name or None, int(count)))
    return plan_of(found)


def plan_of(phases: Phases) -> Plan:
    """The phases with their epochs; by default one epoch without a phase.

    Raises:
        UsageError: there is none, or one has no epoch.
    """
    if phases is None or isinstance(phases, int):
        phases = [(None, 1 if phases is None else phases)]
    plan = tuple((name, epochs) for name, epochs in phases)
    if not plan:
        raise UsageError(f"There is no phase to train. {_EXAMPLE}")
    for name, epochs in plan:
        if epochs < 1:
            raise UsageError(f"{f'Phase {name!r}' if name else 'Training'} needs at least 1 epoch, found {epochs}")
    return plan


def check_numbers(batch: int, every: int | None, keep: int, seed: int) -> None:
    """Refuses numbers that make no sense.

    Raises:
        UsageError: one does not.
    """
    for what, number, least in (
        ("A batch has at least 1 example", batch, 1),
        ("Checkpoints are at least 1 step apart", 1 if every is None else every, 1),
        ("At least 1 checkpoint is kept", keep, 1),
        ("A seed is 0 or more", seed, 0),
    ):
        if number < least:
            raise UsageError(f"{what}, found {number}")


def check_places(
    out: str | PathLike[str] | None, checkpoint_dir: str | PathLike[str] | None, every: int | None
) -> None:
    """Refuses a run that would leave nothing behind.

    Raises:
        UsageError: it would.
    """
    if out is None and checkpoint_dir is None:
        raise UsageError("The trained model would be lost. Say where it is written with out, or give a checkpoint_dir")
    if every is not None and checkpoint_dir is None:
        raise UsageError("Checkpoints every few steps need a place: give checkpoint_dir too")


def columns_of(columns: Any) -> dict[str, Sequence[str]]:
    """Input name -> names in the data, where one name may stand without a list."""
    return {name: [keys] if isinstance(keys, str) else list(keys) for name, keys in (columns or {}).items()}
