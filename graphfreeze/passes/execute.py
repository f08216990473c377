"""Executes a plan on a draft: exactly what it says, nothing decided anew."""

from __future__ import annotations

import copy

from graphfreeze.errors import UsageError
from graphfreeze.graph.ops import Access
from graphfreeze.graph.trace import Traces, trace_model
from graphfreeze.graph.uses import Trace
from graphfreeze.lowering.merge import build_merge
from graphfreeze.passes import run_pipeline
from graphfreeze.passes.state import Work
from graphfreeze.planning.plan import Plan
from graphfreeze.savedmodel import Draft, digest


def execute_plan(draft: Draft, plan: Plan, traces: Traces | None = None) -> None:
    """Rewrites the draft's meta graphs as planned; traces them where ``traces`` is not given.

    Raises:
        UsageError: the plan was made for another model.
        UnsupportedModelError: a use of a frozen variable can be neither merged nor guarded.
    """
    if digest(draft.model) != plan.digest:
        raise UsageError(
            f"The plan was made for another model: its source '{plan.model}' has digest {plan.digest[:12]}, "
            f"'{draft.model.directory}' has {digest(draft.model)[:12]}. Plan again with: graphfreeze plan MODEL ..."
        )
    traces = traces or trace_model(draft)
    by_tags = {tuple(m.meta_info_def.tags): m for m in draft.model.proto.meta_graphs}
    for planned in plan.meta_graphs:
        if not planned.touched():
            continue
        meta = by_tags[planned.tags]
        trace = traces[planned.tags]
        merges = {
            index: build_merge(variable, _paths(trace, index))
            for index, variable in enumerate(planned.variables)
            if variable.strategy is not None
        }
        before = copy.deepcopy(draft.bundle_graph)
        run_pipeline(Work(draft, meta, trace, planned, merges, plan.digest, plan.spec, before=before))


def _paths(trace: Trace, index: int) -> frozenset[Access]:
    """The access paths of a variable; one that nothing reads is treated as read in full, to keep its geometry."""
    return frozenset(r.access.path for _, r in trace.reads(index)) or frozenset({Access.FULL})
