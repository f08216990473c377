"""Executes a plan on a draft: exactly what it says, nothing decided anew."""

from __future__ import annotations

import copy

from graphfreeze.errors import UsageError
from graphfreeze.graph.ops import Access
from graphfreeze.graph.trace import Traces, trace_model
from graphfreeze.graph.uses import Trace
from graphfreeze.lowering.merge import Merge, build_merge
from graphfreeze.passes import run_pipeline
from graphfreeze.passes.state import Work
from graphfreeze.planning.plan import MetaGraphPlan, Plan
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
        if not planned.touched() and not planned.phases:
            continue
        meta = by_tags[planned.tags]
        trace = traces[planned.tags]
        merges = _merges(trace, planned, None)
        before = copy.deepcopy(draft.bundle_graph)
        by_phase = {phase.name: _merges(trace, planned, phase.name) for phase in planned.phases}
        work = Work(draft, meta, trace, planned, merges, plan.digest, plan.spec, before=before, by_phase=by_phase)
        run_pipeline(work)


def _merges(trace: Trace, planned: MetaGraphPlan, phase: str | None) -> dict[int, Merge]:
    """The merge of every variable of which something is held, in a phase or (None) in any."""
    variables = enumerate(v.in_phase(phase) for v in planned.variables)
    return {i: build_merge(v, _paths(trace, i)) for i, v in variables if v.strategy is not None}


def _paths(trace: Trace, index: int) -> frozenset[Access]:
    """The access paths of a variable; one that nothing reads is treated as read in full, to keep its geometry."""
    return frozenset(r.access.path for _, r in trace.reads(index)) or frozenset({Access.FULL})
