"""Warns of rows that a selector names by another number than the model's ids have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from graphfreeze.graph.uses import Trace
from graphfreeze.graph.variables import Variable
from graphfreeze.selection import Region

_SHOWN = 6


def mod_warnings(trace: Trace, frozen: Mapping[int, Region]) -> Iterator[str]:
    """A warning for each partitioned variable of which a part is frozen and that is looked up by ``mod``."""
    groups: dict[str, list[Variable]] = {}
    for variable in trace.variables:
        if variable.part is not None:
            groups.setdefault(variable.part.whole, []).append(variable)
    for name, parts in groups.items():
        regions = [frozen.get(v.index) for v in parts]
        dealt = {n for v in parts if (n := trace.main.by_mod.get(v.index)) is not None}
        if not dealt or all(r is None or r.is_empty for r in regions) or all(r and r.is_whole for r in regions):
            continue
        ids = sorted(_ids(parts, regions, dealt.pop()))
        shown = ", ".join(str(i) for i in ids[:_SHOWN]) + (", ..." if len(ids) > _SHOWN else "")
        count = len(parts)
        yield (
            f"'{name}' is looked up with partition_strategy 'mod': its rows are selected as they are stored, and id i "
            f"is row i // {count} of part i % {count}. What is frozen belongs to ids {shown}"
        )


def _ids(parts: Sequence[Variable], regions: Sequence[Region | None], dealt: int) -> Iterator[int]:
    """The ids of all rows of which something is frozen; a part is what its place among the parts says."""
    for number, (_, region) in enumerate(zip(parts, regions, strict=True)):
        if region is None or region.is_empty:
            continue
        held = region.to_mask()
        rows = np.flatnonzero(held.reshape(held.shape[0], -1).any(axis=1))
        yield from (int(row) * dealt + number for row in rows)
