"""What is said of a meta graph beside its variables: whether it trains, its batch norms, what a rewrite noted in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FunctionTraining:
    """One function or signature: how many of the weights that it reads a gradient can reach, and why no more."""

    name: str
    weights: int
    read: int
    why: str = ""
    ops: tuple[str, ...] = ()
    """Ops that a gradient has to pass."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"name": self.name, "weights": self.weights, "read": self.read, "why": self.why}


@dataclass(frozen=True, slots=True)
class Training:
    """The answer for one meta graph."""

    trains: bool
    why: str
    """In a few words; of a model that trains, what is peculiar about it."""
    weights: int
    """Weights that some function can train."""
    functions: tuple[FunctionTraining, ...] = ()
    without_gradient: tuple[str, ...] | None = None
    """With ``--deep``: ops on the way that TensorFlow has no gradient for."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "trains": self.trains,
            "why": self.why,
            "weights": self.weights,
            "functions": [f.to_dict() for f in self.functions],
            "ops_without_gradient": None if self.without_gradient is None else list(self.without_gradient),
        }


@dataclass(frozen=True, slots=True)
class FreezeRecord:
    """What a rewrite noted in the model about itself."""

    version: str
    """Of graphfreeze; empty where it was not noted."""
    format: int
    """Of the marks."""
    source: str
    """Digest of the model that was rewritten."""
    spec: dict[str, Any]
    """The rules, as in a spec file."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"version": self.version, "format": self.format, "source": self.source, "spec": self.spec}


@dataclass(frozen=True, slots=True)
class PhaseRecord:
    """One phase: what trains in it, and the functions that it has."""

    name: str
    loss: str | None
    trainable: int
    """Elements that train."""
    optimizer_bytes: int
    """Of slots with Adam, two per trainable element."""
    variables: tuple[str, ...]
    """Names of what an optimizer is given, in order."""
    functions: tuple[str, ...] = ()
    """What can be called, as paths below ``graphfreeze/phases/NAME``, and signatures as ``signature NAME@PHASE``."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "name": self.name,
            "loss": self.loss,
            "trainable": self.trainable,
            "optimizer_bytes": self.optimizer_bytes,
            "variables": list(self.variables),
            "functions": list(self.functions),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PhaseRecord:
        """Reads ``to_dict``'s form back."""
        return cls(
            data["name"],
            data["loss"],
            data["trainable"],
            data["optimizer_bytes"],
            tuple(data["variables"]),
            tuple(data["functions"]),
        )


@dataclass(frozen=True, slots=True)
class NormPlace:
    """One op (or arithmetic) that normalises with the statistics of the batch."""

    function: str
    node: str
    op: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"function": self.function, "node": self.node, "op": self.op}


@dataclass(frozen=True, slots=True)
class BatchNormRecord:
    """What a plan chose for one batch norm, and why; variables by their names, or paths where names repeat."""

    gamma: str | None
    beta: str | None
    moving_mean: str
    moving_variance: str
    mean_path: str
    choice: str
    """``freeze-stats``, ``update`` or ``inference``."""
    reason: str
    places: tuple[NormPlace, ...] = ()

    @property
    def label(self) -> str:
        """One of its variables, to call it by."""
        return self.gamma or self.beta or self.moving_mean

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "gamma": self.gamma,
            "beta": self.beta,
            "moving_mean": self.moving_mean,
            "moving_variance": self.moving_variance,
            "mean_path": self.mean_path,
            "choice": self.choice,
            "reason": self.reason,
            "places": [place.to_dict() for place in self.places],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BatchNormRecord:
        """Reads ``to_dict``'s form back."""
        return cls(**{**data, "places": tuple(NormPlace(**place) for place in data["places"])})
