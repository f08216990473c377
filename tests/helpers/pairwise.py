"""A small selection of cases in which chosen pairs of factors meet in all their values; the same at every run.

The full product of fixtures, region kinds, strategies, optimizers and modes takes hours. Most faults show with two
factors at certain values, so every pair that matters is covered at least once, and the others are spread evenly.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product

Case = dict[str, str]
Pair = tuple[str, str, str, str]
"""Factor, its value, another factor, its value."""


def everything(factors: Mapping[str, Sequence[str]], allowed: Callable[[Case], bool]) -> list[Case]:
    """The full product, without what makes no sense."""
    cases = (dict(zip(factors, values, strict=True)) for values in product(*factors.values()))
    return [case for case in cases if allowed(case)]


def pairwise(
    factors: Mapping[str, Sequence[str]], allowed: Callable[[Case], bool], meet: Iterable[tuple[str, str]]
) -> list[Case]:
    """Cases in which every value of the first of each ``meet`` occurs with every value of the second, where allowed."""
    wanted = set(meet)
    possible = everything(factors, allowed)
    open_pairs = dict.fromkeys(pair for case in possible for pair in _pairs(case, wanted))
    by_pair: dict[Pair, list[Case]] = {pair: [] for pair in open_pairs}
    for case in possible:
        for pair in _pairs(case, wanted):
            by_pair[pair].append(case)
    used: Counter[tuple[str, str]] = Counter()
    chosen: list[Case] = []
    while open_pairs:
        first = next(iter(open_pairs))
        best = max(by_pair[first], key=lambda case: _worth(case, wanted, open_pairs, used))
        chosen.append(best)
        used.update(best.items())
        for pair in _pairs(best, wanted):
            open_pairs.pop(pair, None)
    return chosen


def _pairs(case: Case, wanted: set[tuple[str, str]]) -> Iterator[Pair]:
    for one, other in sorted(wanted):
        yield one, case[one], other, case[other]


def _worth(
    case: Case, wanted: set[tuple[str, str]], open_pairs: Mapping[Pair, None], used: Counter[tuple[str, str]]
) -> tuple[int, int]:
    """New pairs first, then what was used least; the earliest of equals wins, as max does."""
    return sum(pair in open_pairs for pair in _pairs(case, wanted)), -sum(used[item] for item in case.items())


def shown(cases: Sequence[Case]) -> str:
    """The selection as a table, one case a line."""
    return "\n".join(" ".join(f"{value:<22}" for value in case.values()).rstrip() for case in cases)
