"""Decides what a rewrite will do, and says why. Nothing here changes a model."""

from graphfreeze.planning.decide import Options, plan_meta_graph
from graphfreeze.planning.model import Task, plan_model
from graphfreeze.planning.plan import (
    Atom,
    MetaGraphPlan,
    Plan,
    ReadRecord,
    Storage,
    VariablePlan,
    WriteRecord,
)

__all__ = [
    "Atom",
    "MetaGraphPlan",
    "Options",
    "Plan",
    "ReadRecord",
    "Storage",
    "Task",
    "VariablePlan",
    "WriteRecord",
    "plan_meta_graph",
    "plan_model",
]
