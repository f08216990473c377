"""What ``train`` did, and where a run stands, as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Epoch:
    """One pass over the data."""

    phase: str | None
    """None in a run without phases."""
    number: int
    """Counted from 1 within the phase."""
    steps: int
    loss: float
    """Mean over the epoch's batches, each before its step."""
    metrics: Mapping[str, float]
    """Means over the batches, as the loss."""

    def to_dict(self) -> dict[str, Any]:
        """For ``--json`` and for the state of a checkpoint."""
        return {
            "phase": self.phase,
            "epoch": self.number,
            "steps": self.steps,
            "loss": self.loss,
            "metrics": dict(self.metrics),
        }


@dataclass(frozen=True, slots=True)
class Tick:
    """A step that was just made, for whoever draws a bar."""

    phase: str | None
    epoch: int
    """Counted from 1 within the phase."""
    epochs: int
    batch: int
    """Counted from 1 within the epoch."""
    batches: int | None
    """None where the data do not say."""
    step: int
    """Counted from 1 over the whole run."""
    loss: float


Progress = Callable[[Tick], None]


@dataclass(frozen=True, slots=True)
class Trained:
    """A run that came to its end."""

    model: str
    out: str | None
    epochs: tuple[Epoch, ...]
    """Those before an interruption included."""
    steps: int
    """Over the whole run."""
    resumed_from: int | None
    """The step after which this process went on; None for a run from the start."""
    trained: Mapping[str | None, tuple[str, ...]]
    """Phase -> names of the variables that it trains."""
    state_bytes: int
    """Bytes of the optimizers' state."""
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "schema": 1,
            "command": "train",
            "model": self.model,
            "out": self.out,
            "steps": self.steps,
            "resumed_from": self.resumed_from,
            "epochs": [e.to_dict() for e in self.epochs],
            "phases": [{"phase": name, "variables": list(v)} for name, v in self.trained.items()],
            "optimizer_bytes": self.state_bytes,
            "warnings": list(self.warnings),
        }
