"""The plain model that a rewritten one must equal: its source, or what ``finalize`` makes of it once it was trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphfreeze.errors import UsageError
from graphfreeze.graph.variables import Variable, find_variables, is_float
from graphfreeze.lowering.holding import Evidence, Holding, Problem
from graphfreeze.passes.evidence import UNKNOWN
from graphfreeze.savedmodel import Array, Draft, differing, largest_change
from graphfreeze.savedmodel.protos import MetaGraphDef


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the values of a rewritten meta graph stand to the source's."""

    trained: bool
    """Whether any value that both store is another."""
    problems: tuple[Problem, ...]
    """Frozen elements that are not the source's."""


def meta_like(source: Draft, meta: MetaGraphDef, name: Path, rewritten: Draft) -> MetaGraphDef:
    """The source's meta graph with the same tags.

    Raises:
        UsageError: there is none.
    """
    tags = list(meta.meta_info_def.tags)
    for like in source.model.proto.meta_graphs:
        if list(like.meta_info_def.tags) == tags:
            return like
    raise _not_the_source(name, rewritten.model.directory, f"it has no meta graph with the tags {tags}")


def compare_values(
    rewritten: Draft, meta: MetaGraphDef, source: Draft, like: MetaGraphDef, evidence: Evidence, name: Path
) -> Comparison:
    """Effective values against the source's, which the caller called ``name``.

    Raises:
        UsageError: the source is another model: one of its variables is not in the rewritten one.
    """
    where = name, rewritten.model.directory
    for problem in evidence.problems:
        if problem.check == UNKNOWN:
            raise _not_the_source(*where, f"it has no variable '{problem.where}', which is frozen in the result")
    held = {h.path: h for h in evidence.holdings}
    trained, problems = False, []
    for variable, other in _pairs(rewritten, meta, source, like):
        if other is None:
            why = f"its variable '{variable.name}' of {variable.dtype} {_shape(variable)} is not in the result"
            raise _not_the_source(*where, why)
        holding = held.get(variable.path)
        value = _stored(rewritten, other.key) if holding is None else _effective(rewritten, holding)
        before = _stored(source, variable.key)
        if value is None or before is None or not differing(value, before).any():
            continue
        trained = True
        if holding is not None:
            problems += _moved(holding, value, before)
    return Comparison(trained, tuple(problems))


def _not_the_source(source: Path, rewritten: Path, why: str) -> UsageError:
    """The error for two models that do not belong together."""
    return UsageError(
        f"'{source}' is not the model that '{rewritten}' was made from: {why}. Give the model that was rewritten, then "
        "the result"
    )


def _pairs(
    rewritten: Draft, meta: MetaGraphDef, source: Draft, like: MetaGraphDef
) -> Iterator[tuple[Variable, Variable | None]]:
    """The float variables that the source stores, each with that of the rewritten model: by path, else by name."""
    others = [v for v in find_variables(rewritten, meta) if v.key is not None]
    for variable in find_variables(source, like):
        if variable.key is None or not is_float(variable.dtype) or variable.is_state:
            continue
        fitting = [o for o in others if (o.name, o.dtype, o.shape) == (variable.name, variable.dtype, variable.shape)]
        same_path = [o for o in fitting if o.path == variable.path]
        yield variable, next(iter(same_path or fitting), None)


def _stored(draft: Draft, key: str | None) -> Array | None:
    if key is None or key not in draft.keys():  # noqa: SIM118 (a Draft is no mapping)
        return None
    return np.asarray(draft.tensor(key))


def _effective(draft: Draft, holding: Holding) -> Array | None:
    base = _stored(draft, next(iter(holding.keys), None))
    stored = [_stored(draft, next(iter(s.keys), None)) for s in holding.stored]
    if base is None or any(s is None for s in stored):
        return None
    return holding.effective(base, [s for s in stored if s is not None])


def _moved(holding: Holding, value: Array, before: Array) -> list[Problem]:
    one, other = holding.unmoved.take(value), holding.unmoved.take(before)
    count = int(differing(one, other).sum())
    if not count:
        return []
    change = largest_change(one, other, np.ones(one.shape, np.bool_))
    words = f"{count:,} of {holding.unmoved.count:,} frozen elements are not the source's, by up to {change:.3g}"
    return [Problem("frozen values", holding.name, words)]


def _shape(variable: Variable) -> str:
    return "of unknown shape" if variable.shape is None else f"and shape {list(variable.shape)}"
