"""What becomes of each batch norm: whether its moving statistics are frozen with its gamma and beta, and what it uses.

| ``--batch-norm`` | moving statistics, with gamma and beta frozen whole | ops in training mode use |
|------------------|----------------------------------------------------|--------------------------|
| ``freeze-stats`` | frozen, by guards                                  | statistics of the batch  |
| ``update``       | updated, unless selected                           | statistics of the batch  |
| ``inference``    | frozen, by guards                                  | stored statistics        |

``inference`` goes for every norm whose moving statistics are frozen whole, by whatever rule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.norms import Norm
from graphfreeze.graph.uses import Trace
from graphfreeze.planning.records import BatchNormRecord, NormPlace
from graphfreeze.selection import BatchNorm, Region


@dataclass(slots=True)
class _Group:
    """All places of one batch norm, which are those with one moving mean and variance."""

    mean: int
    variance: int
    parameters: tuple[int, ...]
    places: list[tuple[str, Norm]]


@dataclass(frozen=True, slots=True)
class NormDecision:
    """One batch norm: its record, and the statistics that are frozen with it."""

    record: BatchNormRecord
    frozen: tuple[int, ...]


def decide_norms(
    trace: Trace,
    labels: Sequence[str],
    frozen: Mapping[int, Region],
    trained: Collection[int],
    chosen: BatchNorm,
    *,
    extend: bool,
) -> Iterator[NormDecision]:
    """The decision for every batch norm that the graph trains with.

    Args:
        trace: All uses of all variables.
        labels: What each variable is called.
        frozen: Variable -> what the rules freeze of it.
        trained: Variables that a rule says to train.
        chosen: The option.
        extend: Whether statistics may be frozen that no rule freezes.

    Raises:
        UnsupportedModelError: an op cannot be given the stored statistics.
    """
    for group in _groups(trace):
        whole = {v for v in (*group.parameters, group.mean, group.variance) if v in frozen and frozen[v].is_whole}
        statistics = (group.mean, group.variance)
        more: tuple[int, ...] = ()
        loose = [v for v in group.parameters if v not in whole]
        if set(statistics) <= whole:
            held, why = True, "its moving statistics are selected"
        elif loose:
            held, why = False, f"{_named([labels[v] for v in loose])} {_is(loose)} not frozen whole"
        elif chosen is BatchNorm.UPDATE or not extend:
            held, why = False, "nothing selects its moving statistics"
        elif set(statistics) & set(trained):
            held, why = False, "a rule says to train its moving statistics"
        elif any(trace.kind(trace.variables[v]) != "statistic" for v in statistics):
            held, why = False, "nothing says that its moving statistics are not trained"
        else:
            held, why = True, f"{_named([labels[v] for v in group.parameters])} {_is(group.parameters)} frozen whole"
            more = tuple(v for v in statistics if v not in whole)
        choice = BatchNorm.UPDATE if not held else _applied(chosen)
        if choice is BatchNorm.INFERENCE:
            _refuse(group, labels)
        yield NormDecision(_record(trace, labels, group, choice, why), more)


def _applied(chosen: BatchNorm) -> BatchNorm:
    return BatchNorm.INFERENCE if chosen is BatchNorm.INFERENCE else BatchNorm.FREEZE_STATS


def _groups(trace: Trace) -> list[_Group]:
    """Norms by their moving statistics; where a scope does not move those, gamma and beta say which they are."""
    found: dict[tuple[int, int], _Group] = {}
    unknown: list[tuple[str, Norm]] = []
    for body in trace.all_bodies():
        for norm in body.norms:
            if norm.mean is None or norm.variance is None:
                unknown.append((body.key.function, norm))
                continue
            group = found.setdefault((norm.mean, norm.variance), _Group(norm.mean, norm.variance, (), []))
            group.parameters = tuple(dict.fromkeys((*group.parameters, *_parameters(norm))))
            group.places.append((body.key.function, norm))
    for function, norm in unknown:
        for group in found.values():
            if norm.training and _parameters(norm) == group.parameters:
                group.places.append((function, norm))
    return [g for g in found.values() if any(norm.training for _, norm in g.places)]


def _parameters(norm: Norm) -> tuple[int, ...]:
    return tuple(v for v in (norm.gamma, norm.beta) if v is not None)


def _refuse(group: _Group, labels: Sequence[str]) -> None:
    for function, norm in group.places:
        why = norm.trouble
        if norm.training and not why and norm.mean is None:
            why = "it does not write the moving statistics there, so they are not at hand"
        if norm.training and why:
            where = f"function '{function}'" if function else "the main graph"
            raise UnsupportedModelError(
                f"Cannot give batch norm '{norm.node}' ({norm.op}) in {where} the stored statistics "
                f"'{labels[group.mean]}' and '{labels[group.variance]}': {why}. Use --batch-norm freeze-stats, which "
                "leaves the op as it is"
            )


def _record(trace: Trace, labels: Sequence[str], group: _Group, choice: BatchNorm, why: str) -> BatchNormRecord:
    gamma = next((n.gamma for _, n in group.places if n.gamma is not None), None)
    beta = next((n.beta for _, n in group.places if n.beta is not None), None)
    places = dict.fromkeys(NormPlace(f, n.node, n.op) for f, n in group.places if n.training)
    return BatchNormRecord(
        gamma=None if gamma is None else labels[gamma],
        beta=None if beta is None else labels[beta],
        moving_mean=labels[group.mean],
        moving_variance=labels[group.variance],
        mean_path=trace.variables[group.mean].path,
        choice=str(choice),
        reason=why,
        places=tuple(places),
    )


def _named(names: Sequence[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)


def _is(names: Collection[object]) -> str:
    return "is" if len(names) == 1 else "are"
