"""The phases of a rewritten model as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphfreeze.errors import UsageError
from graphfreeze.graph.trace import trace_model
from graphfreeze.passes.frozen_view import show_freeze
from graphfreeze.planning import Task, plan_model
from graphfreeze.planning.plan import SCHEMA, MetaGraphPlan
from graphfreeze.savedmodel import Draft


@dataclass(frozen=True, slots=True)
class Phases:
    """What ``phases`` found: the meta graphs that have some, each with its ``phases``."""

    model: str
    meta_graphs: tuple[MetaGraphPlan, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON, schema 1."""
        return {
            "schema": SCHEMA,
            "command": "phases",
            "model": self.model,
            "meta_graphs": [
                {"tags": list(m.tags), "format": m.format, "phases": [p.to_dict() for p in m.phases]}
                for m in self.meta_graphs
            ],
        }


def read_phases(draft: Draft) -> Phases:
    """The phases of a model.

    Raises:
        UsageError: it has none.
        UnsupportedModelError: a newer version wrote the marks, or they are damaged.
    """
    traces, model = trace_model(draft), draft.model.directory
    found = show_freeze(draft, plan_model(draft, Task("phases"), traces), traces)
    phased = tuple(meta for meta in found.meta_graphs if meta.phases)
    if not phased:
        raise UsageError(
            f"'{model}' has no phases. Phases are [[phase]] tables of a spec file: graphfreeze rewrite MODEL OUT "
            "--spec FILE"
        )
    return Phases(str(model), phased)
