"""The plan of one call, on a model that may carry a freeze already: a second rewrite replaces that, or extends it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphfreeze.errors import UsageError
from graphfreeze.graph.trace import Traces
from graphfreeze.passes.presence import is_rewritten
from graphfreeze.planning import Options, Plan, plan_model
from graphfreeze.planning.request import PlanOptions, Selectors, plan_task
from graphfreeze.savedmodel import Draft

# Few models carry a freeze, and what takes one off takes its time to import.
if TYPE_CHECKING:
    from graphfreeze.passes.finalize import TakenOff


def taken_off(draft: Draft) -> TakenOff | None:
    """Takes off a freeze that the model carries: a second rewrite replaces or extends it, on the plain model."""
    if not is_rewritten(draft):
        return None
    from graphfreeze.passes.finalize import take_off

    return take_off(draft)


def plan_call(
    command: str,
    draft: Draft,
    traces: Traces,
    off: TakenOff | None,
    freeze: Selectors,
    train: Selectors,
    add: bool,
    options: PlanOptions,
) -> Plan:
    """What ``plan`` and ``rewrite`` do with their arguments; ``off`` is the freeze that was taken off before.

    Raises:
        UsageError, NoMatchError, UnsupportedModelError, NothingToTrainError, InputOutputError: as for ``api.plan``.
    """
    if add and off is not None and off.phases:
        raise UsageError(
            "The model has phases, and --add extends a freeze without phases. Leave --add out and give a spec of all "
            "that is to be held; it replaces the phases"
        )
    held = off.held if add and off is not None else {}
    if add and off is not None and off.inference and options.get("batch_norm") is None:
        options = {**options, "batch_norm": "inference"}
    task = plan_task(command, freeze, train, held=held, **options)
    plan = plan_model(draft, task, traces)
    if off is not None:
        plan = replace(plan, warnings=plan.warnings + off.lost_steps)
    if not add or off is None or not off.frozen:
        return plan
    from graphfreeze.passes.refreeze import held_again

    given = task.options
    as_before = given == replace(Options(), allow_empty=given.allow_empty, batch_norm=given.batch_norm)
    return held_again(draft, traces, off, plan, as_before=as_before)
