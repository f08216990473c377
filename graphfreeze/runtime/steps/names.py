"""What is called how in a model that brings its own training steps."""

from __future__ import annotations

from collections.abc import Container

from graphfreeze.graph.steps import CHILD, STEPS

ALL = "all"
TRAIN, EVALUATE, SAVE, RESTORE = "train", "evaluate", "save", "restore"
"""Signatures."""
PATH = "path"
"""Input and output of ``save`` and ``restore``."""
SCOPE = f"{CHILD}/{STEPS}/"
"""Name scope of what a step adds."""


def only_phase(signatures: Container[str]) -> str | None:
    """The name of the phase of a model without phases: none, so that its signature is ``train``, if that is free."""
    return ALL if TRAIN in signatures else None


def train_signature(phase: str | None) -> str:
    """Name of the signature that makes one step."""
    return TRAIN if phase is None else f"{TRAIN}@{phase}"
