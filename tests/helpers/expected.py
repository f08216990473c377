"""What becomes of every real model and fixture, as pinned in `tests/models_expected.toml`.

Written anew by ``python -m tests.helpers.expected``; the difference is then read by a person before it is committed.
Everything here works on messages: TensorFlow is not started.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from graphfreeze.errors import GraphfreezeError
from graphfreeze.passes.execute import execute_plan
from graphfreeze.planning import Plan, plan_model
from graphfreeze.planning.plan import VariablePlan
from graphfreeze.planning.request import plan_task
from graphfreeze.savedmodel import open_draft
from tests.conftest import MODELS
from tests.helpers.shared_models import shared_model, shared_model_names

EXPECTED = Path(__file__).resolve().parents[1] / "models_expected.toml"
HEADER = """\
# What graphfreeze makes of every model of ../shared/models and every fixture, without TensorFlow.
#
#   inspect                exit code of inspect
#   format                 TF2 or TF1, one per meta graph
#   variables              how many of each kind
#   reads, writes          how many by access path and by op
#   whole, slice, written  what rewriting gives: the exit code, and where it is 0 the number of variables by strategy
#                          and of reads that were merged. 'whole' freezes every weight that functions read, 'slice'
#                          [:1] of each that is longer, 'written' those that the graph writes; a case without weights
#                          is missing
#
# Write it anew with: python -m tests.helpers.expected
"""
CASES = ("whole", "slice", "written")
Outcome = dict[str, Any]


def model_paths() -> Iterator[tuple[str, str, Path]]:
    """(table, name, folder) of every model there is."""
    for name in shared_model_names():
        yield "shared", name, shared_model(name)
    for path in sorted(MODELS.iterdir()):
        yield "fixtures", path.name, path


def pinned() -> dict[str, dict[str, Outcome]]:
    return tomllib.loads(EXPECTED.read_text(encoding="utf-8"))


def outcome(path: Path) -> Outcome:
    """What the file holds for one model."""
    try:
        plan = plan_model(open_draft(path), plan_task("inspect"))
    except GraphfreezeError as error:
        return {"inspect": error.exit_code}
    variables = [v for m in plan.meta_graphs for v in m.variables]
    result: Outcome = {
        "inspect": 0,
        "format": [m.format for m in plan.meta_graphs],
        "variables": _counts(v.kind for v in variables),
        "reads": _counts(r.access for v in variables for r in v.reads),
        "writes": _counts(w.op for v in variables for w in v.writes),
    }
    for case in CASES:
        chosen = selectors(plan, case)
        if chosen:
            result[case] = rewriting(path, chosen)
    return result


def read_weights(plan: Plan) -> list[VariablePlan]:
    """The weights whose value something reads."""
    variables = [v for m in plan.meta_graphs for v in m.variables]
    return [v for v in variables if v.kind == "weight" and any(r.access != "shape" for r in v.reads)]


def selectors(plan: Plan, case: str) -> list[str]:
    """Whole, or ``[:1]`` where that is less than the whole."""
    weights = [v for v in read_weights(plan) if bool(v.writes) == (case == "written")]
    if case == "slice":
        weights = [v for v in weights if v.shape and v.shape[0] > 1]
    chosen = dict.fromkeys(v.part_of or v.path for v in weights)  # once where parts or meta graphs share it
    return [f"{path}[:1]" if case == "slice" else path for path in chosen]


def rewriting(path: Path, chosen: list[str], **options: Any) -> Outcome:
    """Plans and rewrites in memory."""
    draft = open_draft(path)
    try:
        plan = plan_model(draft, plan_task("rewrite", chosen, allow_empty=True, **options))
        execute_plan(draft, plan)
    except GraphfreezeError as error:
        return {"exit": error.exit_code}
    touched = [v for m in plan.meta_graphs for v in m.touched()]
    merged = sum(r.access != "shape" for v in touched for r in v.reads)
    return {"exit": 0, **_counts(str(v.strategy) for v in touched), "reads": merged}


def _counts(items: Iterable[object]) -> dict[str, int]:
    return dict(sorted(Counter(str(item) for item in items).items()))


def to_toml(tables: Mapping[str, Mapping[str, Outcome]]) -> str:
    lines = [HEADER]
    for table, models in tables.items():
        for name, found in models.items():
            lines.append(f'[{table}."{name}"]')
            lines += [f"{key} = {_value(value)}" for key, value in found.items() if value != {}]
            lines.append("")
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_value(inner) for inner in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def write_expected() -> None:
    tables: dict[str, dict[str, Outcome]] = {"shared": {}, "fixtures": {}}
    for table, name, path in model_paths():
        tables[table][name] = outcome(path)
    if not tables["shared"]:
        raise SystemExit("../shared/models is missing; its part of the file would be lost")
    EXPECTED.write_text(to_toml(tables), encoding="utf-8")


if __name__ == "__main__":
    write_expected()
