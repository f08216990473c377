"""Phases, epochs and steps in order, from wherever the run stands.

Everything that the next step depends on is in the model's variables, the optimizers' state and ``Position``; a
checkpoint holds all three. Order of data, of phases and of steps follow from them, so a run that was killed and goes on
computes what one that was not computes.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from graphfreeze.errors import UsageError
from graphfreeze.runtime.looping.batches import Batches
from graphfreeze.runtime.looping.request import Plan
from graphfreeze.runtime.looping.result import Epoch, Progress, Tick
from graphfreeze.runtime.looping.scalars import Scalars
from graphfreeze.runtime.looping.step import Step


@dataclass(slots=True)
class Position:
    """Where a run stands: what comes next, and the sums of the epoch that is under way."""

    phase: int = 0
    """Index into the plan; its length where all is done."""
    epoch: int = 0
    """Counted from 0 within the phase."""
    batch: int = 0
    """Counted from 0 within the epoch."""
    step: int = 0
    """Steps made in the whole run."""
    seen: int = 0
    """Checksum of the epoch's batches up to here."""
    sums: dict[str, float] = field(default_factory=dict)
    history: list[Epoch] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For the state of a checkpoint; numbers come back as they were, to the last bit."""
        return {
            "phase": self.phase,
            "epoch": self.epoch,
            "batch": self.batch,
            "step": self.step,
            "seen": self.seen,
            "sums": self.sums,
            "history": [e.to_dict() for e in self.history],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Position:
        """The reverse."""
        history = [Epoch(e["phase"], e["epoch"], e["steps"], e["loss"], e["metrics"]) for e in data["history"]]
        return cls(**{**data, "history": history})


class Interrupted:
    """Whether someone asked for an end: by Ctrl-C, or as a machine does that is about to be taken away."""

    def __init__(self) -> None:
        self.by: int | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Signals are noted and end the run after the step; a second one ends it at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: Any) -> None:
        if self.by is not None:
            raise _stop(number, "")
        self.by = number

    def stop(self, message: str) -> None:
        """Ends the run.

        Raises:
            KeyboardInterrupt: by Ctrl-C, with the message.
            SystemExit: by a request of the system.
        """
        raise _stop(self.by or signal.SIGINT, message)


def _stop(number: int, message: str) -> BaseException:
    return SystemExit(128 + number) if number == signal.SIGTERM else KeyboardInterrupt(message)


@dataclass(frozen=True, slots=True)
class Loop:
    """A run with all that it needs."""

    plan: Plan
    steps: Mapping[str | None, Step]
    batches: Batches
    position: Position
    save: Callable[[Position], str | None]
    """Writes a checkpoint; returns where, or None where none are written."""
    every: int | None
    scalars: Scalars
    progress: Progress | None
    interrupted: Interrupted

    def run(self) -> None:
        """Trains to the end.

        Raises:
            UsageError: the loss is no number any more, or the data do not fit.
            KeyboardInterrupt, SystemExit: see ``Interrupted``; a checkpoint is written before.
        """
        position = self.position
        _ = self.batches.count  # refuses data without an end, before a step is made
        while position.phase < len(self.plan):
            name, epochs = self.plan[position.phase]
            step = self.steps[name]
            while position.epoch < epochs:
                self._epoch(step, name, epochs)
            step.optimizer.finalize_variable_values(list(step.phase.variables))
            position.phase, position.epoch = position.phase + 1, 0
            self.save(position)
            self.scalars.flush()

    def _epoch(self, step: Step, name: str | None, epochs: int) -> None:
        position = self.position
        before = sum(count for _, count in self.plan[: position.phase])
        for batch, seen in self.batches.epoch(before + position.epoch, position.batch, position.seen):
            values = self._step(step, batch)
            position.batch, position.step, position.seen = position.batch + 1, position.step + 1, seen
            for key, value in values.items():
                position.sums[key] = position.sums.get(key, 0.0) + value
            self._tell(name, epochs, values["loss"])
            if self.interrupted.by is not None or (self.every is not None and position.step % self.every == 0):
                self._checkpoint()
        if not position.batch:
            raise UsageError("The data hold no batch, so there is nothing to train on. Give at least one")
        means = {key: total / position.batch for key, total in position.sums.items()}
        epoch = Epoch(name, position.epoch + 1, position.batch, means.pop("loss"), means)
        position.history.append(epoch)
        position.epoch, position.batch, position.seen, position.sums = position.epoch + 1, 0, 0, {}
        self.scalars.epoch(position.step, epoch)

    def _step(self, step: Step, batch: Mapping[str, Any]) -> dict[str, float]:
        values = step.make(batch)
        if not math.isfinite(values["loss"]):
            position = self.position
            raise UsageError(
                f"The loss is {values['loss']} at step {position.step + 1} (batch {position.batch + 1} of epoch "
                f"{position.epoch + 1}), so training stopped before a checkpoint could keep that. Look for such "
                "numbers in the data, lower the learning rate, or clip: --optimizer 'adamw(learning_rate=1e-4, "
                "clipnorm=1.0)'"
            )
        return values

    def _tell(self, name: str | None, epochs: int, loss: float) -> None:
        position = self.position
        self.scalars.step(position.step, loss)
        if self.progress is not None:
            count = self.batches.count
            self.progress(Tick(name, position.epoch + 1, epochs, position.batch, count, position.step, loss))

    def _checkpoint(self) -> None:
        where = self.save(self.position)
        self.scalars.flush()
        if self.interrupted.by is None:
            return
        step = self.position.step
        kept = f"kept step {step} in '{where}'; the same command goes on from there"
        self.interrupted.stop(kept if where else "nothing is kept; with a checkpoint folder the run could go on")


def names_of(variables: Sequence[Any]) -> tuple[str, ...]:
    """Names of variables, without the number of an output."""
    return tuple(v.name.removesuffix(":0") for v in variables)
