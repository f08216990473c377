"""All that a verification needs, as one plain value that can be handed to a fresh process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from graphfreeze.lowering.holding import Evidence

ALL = "all"
"""The name that stands for a set of optimizers."""


@dataclass(frozen=True, slots=True)
class Task:
    """One rewritten model and the plain one that it is compared with."""

    plain: Path
    """The source, or for a trained model what ``finalize`` made of it."""
    rewritten: Path
    evidence: Evidence
    steps: int = 20
    optimizer: str = "adamw"
    seed: int = 0
    inputs: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    """Samples by input name, or by ``NAME@signature``."""
    old_keras: bool = False
    """Whether the model holds optimizers of Keras 2, which load only beside tf_keras."""
