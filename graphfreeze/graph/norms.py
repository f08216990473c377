"""What is known of one batch norm, and the few facts about TensorFlow's fused ops that it takes to change one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from graphfreeze.savedmodel.protos import Message

FUSED = re.compile(r"FusedBatchNorm(V2|V3)?")
FUSED_GRADIENT = re.compile(r"FusedBatchNormGrad(V2|V3)?")
FUSED_OUTPUTS = ("y", "batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2", "reserve_space_3")
"""Of the forward op (tensorflow/core/ops/nn_ops.cc)."""


@dataclass(frozen=True, slots=True)
class Norm:
    """One batch norm in one scope; variables by their numbers, None where there is none (or none was found)."""

    node: str
    """The fused op, or the addition that ends the arithmetic."""
    op: str
    training: bool
    """Whether it takes the statistics of the batch."""
    gamma: int | None = None
    beta: int | None = None
    mean: int | None = None
    variance: int | None = None
    gradients: tuple[str, ...] = ()
    """Fused: its gradient ops. Unfused: the tensors that lead a gradient into the statistics of the batch."""
    taken: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Unfused: the tensors of the batch's mean and variance, each with the nodes that take it."""
    trouble: str = ""
    """Why it cannot be given the stored statistics; empty where it can."""


def is_training(node: Message) -> bool:
    """Attribute ``is_training`` of a fused op; TensorFlow leaves out an attribute that has its default, True."""
    return bool(node.attr["is_training"].b) if "is_training" in node.attr else True
