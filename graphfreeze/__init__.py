"""graphfreeze: hold variables, slices and single elements of a TensorFlow SavedModel while its training goes on.

Everything public is listed in ``__all__`` and imported at first use, so that ``import graphfreeze`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graphfreeze.version import __version__ as __version__

if TYPE_CHECKING:
    from graphfreeze.api import checkpoint, diff, finalize, freeze, inspect, phases, plan, rewrite, verify
    from graphfreeze.checkpoints.convert import Converted
    from graphfreeze.comparison.difference import Difference
    from graphfreeze.errors import (
        GraphfreezeError,
        InputOutputError,
        InternalError,
        NoMatchError,
        NothingToTrainError,
        SelectorSyntaxError,
        UnsupportedModelError,
        UsageError,
        VerificationError,
    )
    from graphfreeze.passes.finalize import Finalized
    from graphfreeze.passes.phase_view import Phases
    from graphfreeze.planning.plan import Plan
    from graphfreeze.runtime.copy_back import CopiedBack, finalize_into
    from graphfreeze.runtime.loaded import trainable_variables, value
    from graphfreeze.runtime.looping.result import Trained
    from graphfreeze.runtime.looping.train import train
    from graphfreeze.runtime.steps.build import train_step
    from graphfreeze.runtime.steps.result import Steps
    from graphfreeze.runtime.verifying.results import Verified


_HOMES = {
    "graphfreeze.api": ("checkpoint", "diff", "finalize", "freeze", "inspect", "phases", "plan", "rewrite", "verify"),
    "graphfreeze.checkpoints.convert": ("Converted",),
    "graphfreeze.comparison.difference": ("Difference",),
    "graphfreeze.errors": (
        "GraphfreezeError",
        "InputOutputError",
        "InternalError",
        "NoMatchError",
        "NothingToTrainError",
        "SelectorSyntaxError",
        "UnsupportedModelError",
        "UsageError",
        "VerificationError",
    ),
    "graphfreeze.passes.finalize": ("Finalized",),
    "graphfreeze.passes.phase_view": ("Phases",),
    "graphfreeze.planning.plan": ("Plan",),
    "graphfreeze.runtime.copy_back": ("CopiedBack", "finalize_into"),
    "graphfreeze.runtime.loaded": ("trainable_variables", "value"),
    "graphfreeze.runtime.steps.build": ("train_step",),
    "graphfreeze.runtime.steps.result": ("Steps",),
    "graphfreeze.runtime.looping.result": ("Trained",),
    "graphfreeze.runtime.looping.train": ("train",),
    "graphfreeze.runtime.verifying.results": ("Verified",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Converted",
    "CopiedBack",
    "Difference",
    "Finalized",
    "GraphfreezeError",
    "InputOutputError",
    "InternalError",
    "NoMatchError",
    "NothingToTrainError",
    "Phases",
    "Plan",
    "SelectorSyntaxError",
    "Steps",
    "Trained",
    "UnsupportedModelError",
    "UsageError",
    "VerificationError",
    "Verified",
    "checkpoint",
    "diff",
    "finalize",
    "finalize_into",
    "freeze",
    "inspect",
    "phases",
    "plan",
    "rewrite",
    "train",
    "train_step",
    "trainable_variables",
    "value",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'graphfreeze' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
