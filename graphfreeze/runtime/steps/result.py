"""What ``train_step`` did, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Steps:
    """Signatures that were added to a model."""

    model: str
    out: str
    trained: Mapping[str, tuple[str, ...]]
    """Signature of a training step -> names of the variables that it trains."""
    signatures: tuple[str, ...]
    """All that were added, training steps first."""
    inputs: Mapping[str, tuple[str, tuple[int | None, ...] | None]]
    """Inputs of the training steps, targets last: name -> (dtype, shape); None stands for any size, or any shape."""
    state_bytes: int
    """Bytes of the optimizers' statistics."""
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "schema": 1,
            "command": "train-step",
            "model": self.model,
            "out": self.out,
            "steps": [{"signature": s, "variables": list(v)} for s, v in self.trained.items()],
            "signatures": list(self.signatures),
            "inputs": [
                {"name": name, "dtype": dtype, "shape": None if shape is None else list(shape)}
                for name, (dtype, shape) in self.inputs.items()
            ],
            "optimizer_bytes": self.state_bytes,
            "warnings": list(self.warnings),
        }


def bytes_of(variables: Any) -> int:
    """Bytes of variables of known shape."""
    return sum(int(v.dtype.size * v.shape.num_elements()) for v in variables)
