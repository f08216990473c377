"""Puts the findings of a run into rows: one per function, one per variable."""

from __future__ import annotations

from graphfreeze.lowering.holding import Evidence
from graphfreeze.runtime.verifying.gradients import MODES
from graphfreeze.runtime.verifying.results import FunctionResult, Rows, Status, VariableResult
from graphfreeze.runtime.verifying.run import Found


def rows(found: Found, evidence: Evidence) -> Rows:
    """All that a run found, without what was as it should be."""
    findings = tuple(f for f in found.findings if f.status in ("failed", "not run"))
    return Rows(_functions(found, evidence), _variables(found, evidence), tuple(found.training), findings)


def _functions(found: Found, evidence: Evidence) -> tuple[FunctionResult, ...]:
    """The status of every check of every function, in the order of the object graph."""
    status: dict[tuple[str, str], Status] = {(f.check, f.where): f.status for f in found.findings}

    def of(check: str, label: str) -> Status:
        return status.get((check, label), "not run")

    return tuple(
        FunctionResult(
            c.label,
            of("forward", c.label),
            of("poison", c.label),
            (of(f"gradients ({MODES[0]})", c.label), of(f"gradients ({MODES[1]})", c.label)),
        )
        for c in evidence.callables
    )


def _variables(found: Found, evidence: Evidence) -> tuple[VariableResult, ...]:
    """Every variable that is frozen in part or whole, then every other one that trains."""
    rows = []
    flags = list(found.reached.values())
    for i, holding in enumerate(evidence.holdings):
        trainable = holding.frozen.size - holding.frozen.count
        reached = any(f[i] for f in flags) if trainable and flags else None
        moves = [m[holding.path] for m in found.moves]
        moved = max((m.moved for m in moves), default=None) if trainable else None
        change = max((m.change for m in moves), default=None)
        rows.append(VariableResult(holding.name, holding.frozen.count, trainable, reached, moved, change))
    for i, other in enumerate(evidence.others, len(evidence.holdings)):
        moves = [m[other.path] for m in found.moves]
        reached = any(f[i] for f in flags) if flags else None
        moved = max((m.moved for m in moves), default=None)
        rows.append(VariableResult(other.name, 0, other.elements, reached, moved, None))
    return tuple(rows)
