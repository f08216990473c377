"""The variables of a meta graph as selectors see them: the parts of a partitioned variable as the one that they are.

The graph keeps the parts apart, each with reads of its own, so what is frozen of the whole is cut into regions of the
parts. A part alone has no name to select it by: how many there are says nothing about the model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping

import numpy as np

from graphfreeze.graph.uses import Trace
from graphfreeze.graph.variables import Variable
from graphfreeze.savedmodel import Array
from graphfreeze.selection import Region, VariableView, mask_region
from graphfreeze.selection.resolve import Resolution


class Views:
    """The views of one trace, and the way back from them to its variables."""

    def __init__(self, trace: Trace) -> None:
        self._groups = _groups(trace)
        self.all = tuple(_view(trace, group) for group in self._groups.values())

    def touched(self, resolution: Resolution) -> Iterator[tuple[Variable, Region, bool]]:
        """(variable, its frozen elements, whether it is turned on) of everything that the rules touch."""
        for outcome in resolution.variables:
            for variable in self._groups[_index(outcome.variable)]:
                yield variable, _cut(variable, outcome.frozen), outcome.enabled


def held_by_view(trace: Trace, frozen: Mapping[str, Region]) -> dict[Hashable, Region]:
    """What is frozen already, by view, from what is frozen of each path."""
    found: dict[Hashable, Region] = {}
    for index, group in _groups(trace).items() if frozen else ():
        regions = {v.index: frozen[v.path] for v in group if v.path in frozen}
        if regions:
            found[index] = _joined(group, regions)
    return found


def _groups(trace: Trace) -> dict[int, list[Variable]]:
    """By the first of each: the parts of one variable, every other variable alone."""
    groups: dict[Hashable, list[Variable]] = {}
    for variable in trace.variables:
        groups.setdefault(variable.index if variable.part is None else variable.part.whole, []).append(variable)
    return {group[0].index: group for group in groups.values()}


def _index(view: VariableView) -> int:
    assert isinstance(view.id, int)
    return view.id


def _view(trace: Trace, group: list[Variable]) -> VariableView:
    first = group[0]
    kinds = {trace.kind(v) for v in group}
    part = first.part
    return VariableView(
        id=first.index,
        name=first.name if part is None else part.whole,
        # The only part of a variable is known by its own name as well.
        path=first.path if part is None or len(group) == 1 else part.whole,
        key=first.key,
        shape=first.shape if part is None else part.whole_shape,
        dtype=first.dtype,
        kind=next(k for k in ("weight", "statistic", "state") if k in kinds),
        trainable=any(v.trainable for v in group),
    )


def _cut(variable: Variable, region: Region) -> Region:
    part = variable.part
    if part is None or part.shape == part.whole_shape:
        return region
    return mask_region(region.to_mask()[part.index])


def _joined(group: list[Variable], regions: Mapping[int, Region]) -> Region:
    part = group[0].part
    if part is None or part.shape == part.whole_shape:
        return regions[group[0].index]
    mask = np.zeros(part.whole_shape, np.bool_)
    for variable in group:
        if variable.part is not None and variable.index in regions:
            mask[variable.part.index] = regions[variable.index].to_mask()
    return mask_region(mask)


def stored_value(variable: Variable, read: Callable[[str], Array]) -> Array:
    """The stored value of a variable that has a key; of a part, its box of the whole."""
    assert variable.key is not None
    value = read(variable.key)
    return value if variable.part is None else value[variable.part.index]
