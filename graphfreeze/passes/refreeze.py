"""Puts a freeze, or a part of it, back on a model that it was taken off from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from graphfreeze.errors import NoMatchError, UsageError
from graphfreeze.graph.trace import Traces
from graphfreeze.passes.finalize import Lifted, TakenOff
from graphfreeze.planning import Options, Plan, Task, plan_model
from graphfreeze.planning.plan import MetaGraphPlan, VariablePlan
from graphfreeze.planning.records import BatchNormRecord
from graphfreeze.savedmodel import Draft
from graphfreeze.selection import BatchNorm, Copy, Region, Strategy, parse_selector

_MOST_LISTED = 5


def matching(globs: Sequence[str], frozen: Sequence[Lifted]) -> list[Lifted]:
    """The frozen variables that globs name, by name or path.

    Raises:
        NoMatchError: a glob names none.
        UsageError: a glob cannot be parsed, or has an index.
    """
    found: list[Lifted] = []
    for glob in globs:
        selector = parse_selector(glob)
        if selector.index is not None:
            raise UsageError(
                f"'{glob}' has an index, but a freeze is lifted from whole variables. To hold fewer elements, rewrite "
                "the model again: graphfreeze rewrite MODEL OUT --freeze ..."
            )
        target = selector.target
        hits = [v for v in frozen if target.matches(v.path) or target.matches(v.name)]
        if not hits:
            listed = ", ".join(f"'{v.name}'" for v in frozen[:_MOST_LISTED])
            more = f" and {len(frozen) - _MOST_LISTED} more" if len(frozen) > _MOST_LISTED else ""
            raise NoMatchError(f"No frozen variable matches '{glob}'. Frozen are: {listed}{more}")
        found += [v for v in hits if v not in found]
    return found


def plan_again(
    draft: Draft, traces: Traces, kept: Collection[Lifted], enabled: Collection[str], *, inference: bool
) -> Plan:
    """The plan that holds these variables as they were held before, each by its own strategy.

    With ``inference``, batch norms whose statistics are among them use those in training mode.
    """
    batch_norm = BatchNorm.INFERENCE if inference else BatchNorm.UPDATE
    groups: dict[Options, dict[str, Region]] = {}
    for lifted in kept:
        fact = lifted.fact
        strategy = Strategy.AUTO if fact.strategy is None else Strategy(fact.strategy)
        kind = Copy.SNAPSHOT if fact.copy is None else Copy(fact.copy)
        options = Options(strategy, kind, fact.strict, allow_empty=True, batch_norm=batch_norm, extend=False)
        groups.setdefault(options, {})[lifted.path] = lifted.region
    plans = [plan_model(draft, Task("rewrite", options=o, held=held), traces) for o, held in groups.items()]
    plan = plans[0] if plans else plan_model(draft, Task("rewrite"), traces)
    for other in plans[1:]:
        plan = _joined(plan, other)
    return turn_on(plan, enabled)


def extended(plan: Plan, before: Plan) -> Plan:
    """A plan that extends a freeze: what it holds no more of than ``before`` did stays held as it was."""
    held = {v.path: v for meta in before.meta_graphs for v in meta.variables if v.strategy is not None}

    def choose(variable: VariablePlan) -> VariablePlan:
        old = held.get(variable.path)
        return variable if old is None or old.region != variable.region else old

    return _mapped(plan, choose)


def turn_on(plan: Plan, enabled: Collection[str]) -> Plan:
    """The plan with these variables turned on, which the source holds untrainable."""
    return _mapped(plan, lambda v: replace(v, enabled=True) if v.path in enabled else v)


def held_again(draft: Draft, traces: Traces, off: TakenOff, plan: Plan, *, as_before: bool) -> Plan:
    """Completes the plan of ``--add``; ``as_before`` where the call asks for no strategy of its own."""
    plan = turn_on(plan, off.enabled)
    if not as_before:
        return plan
    again = plan_again(draft, traces, off.frozen, off.enabled, inference=off.inference)
    return extended(plan, again)


def _joined(plan: Plan, other: Plan) -> Plan:
    touched = {v.path: v for meta in other.meta_graphs for v in meta.variables if v.strategy is not None}
    warnings = tuple(dict.fromkeys((*plan.warnings, *other.warnings)))
    joined = _mapped(plan, lambda v: touched.get(v.path, v))
    metas = (
        replace(meta, batch_norms=_norms(meta, more))
        for meta, more in zip(joined.meta_graphs, other.meta_graphs, strict=True)
    )
    return replace(joined, meta_graphs=tuple(metas), warnings=warnings)


def _norms(meta: MetaGraphPlan, other: MetaGraphPlan) -> tuple[BatchNormRecord, ...]:
    """Each batch norm as the one of two plans says that freezes its statistics."""
    held = {n.mean_path: n for n in other.batch_norms if n.choice != BatchNorm.UPDATE}
    return tuple(held.get(norm.mean_path, norm) for norm in meta.batch_norms)


def _mapped(plan: Plan, change: Callable[[VariablePlan], VariablePlan]) -> Plan:
    def of(meta: MetaGraphPlan) -> MetaGraphPlan:
        return replace(meta, variables=tuple(change(v) for v in meta.variables))

    return replace(plan, meta_graphs=tuple(of(meta) for meta in plan.meta_graphs))
