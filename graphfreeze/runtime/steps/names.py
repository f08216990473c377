"""What is called how in a model that brings its own training steps."""

from __future__ import annotations

from graphfreeze.graph.steps import CHILD, STEPS

TRAIN, EVALUATE, SAVE, RESTORE = "train", "evaluate", "save", "restore"
"""Signatures."""
PATH = "path"
"""Input and output of ``save`` and ``restore``."""
SCOPE = f"{CHILD}/{STEPS}/"
"""Name scope of what a step adds."""


def train_signature(phase: str | None) -> str:
    """Name of the signature that makes one step."""
    return TRAIN if phase is None else f"{TRAIN}@{phase}"
