"""How a rewritten model looks to ``inspect``: the variables of the source with what is frozen of them.

Without this a frozen base would pass for state, and a part for a variable of its own that nobody asked for.
"""

from __future__ import annotations

from dataclasses import replace

from graphfreeze.graph.trace import Traces
from graphfreeze.passes.found import Frozen, Marks
from graphfreeze.passes.marks import read_marks
from graphfreeze.passes.presence import has_marks
from graphfreeze.planning import Plan
from graphfreeze.planning.plan import MetaGraphPlan, VariablePlan
from graphfreeze.planning.records import FreezeRecord, PhaseRecord
from graphfreeze.savedmodel import Draft
from graphfreeze.selection import Copy, Strategy

_ADAM_SLOTS = 2


def show_freeze(draft: Draft, plan: Plan, traces: Traces) -> Plan:
    """The plan of a model with the freeze that its meta graphs carry written into it.

    Raises:
        UnsupportedModelError: a newer version wrote the marks, or they are damaged.
    """
    found: dict[tuple[str, ...], Marks] = {}
    for meta in draft.model.proto.meta_graphs:
        tags = tuple(meta.meta_info_def.tags)
        if has_marks(meta):
            found[tags] = read_marks(draft, meta, traces[tags])
    metas = (_marked(m, found[m.tags]) if m.tags in found else m for m in plan.meta_graphs)
    return replace(plan, meta_graphs=tuple(metas))


def _marked(meta: MetaGraphPlan, marks: Marks) -> MetaGraphPlan:
    variables = list(meta.variables)
    for index in marks.enabled:
        variables[index] = replace(variables[index], enabled=True, trainable=False)
    for frozen in marks.frozen:
        variables[frozen.variable] = _held(variables[frozen.variable], frozen)
    phases = tuple(PhaseRecord.from_dict(p) for p in marks.phases)
    return replace(meta, variables=tuple(variables), freeze=_record(marks), phases=phases)


def _record(marks: Marks) -> FreezeRecord | None:
    """What ``info`` notes; None where another tool has lost it."""
    if not marks.holders:
        return None
    info = marks.holders[0].info
    return FreezeRecord(info.get("version", ""), info["format"], info["source"], info["spec"])


def _held(variable: VariablePlan, frozen: Frozen) -> VariablePlan:
    fact = frozen.fact
    if fact.strategy is None:
        return variable
    strategy, count = Strategy(fact.strategy), frozen.region.count
    trains = fact.trainable or fact.enabled
    whole = _ADAM_SLOTS * variable.bytes
    part = whole * (variable.elements - count) // max(variable.elements, 1)
    after = {Strategy.STOP: 0, Strategy.SPLIT: part}.get(strategy, whole)
    after = whole if fact.phases else after
    return replace(
        variable,
        kind="weight" if trains else variable.kind,
        trainable=fact.trainable,
        frozen=count,
        strategy=strategy,
        copy=None if fact.copy is None else Copy(fact.copy),
        strict=fact.strict,
        enabled=fact.enabled,
        optimizer_bytes=(whole if fact.trainable else 0, after if trains else 0),
    )
