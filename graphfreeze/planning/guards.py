"""Which guard a write in the graph gets, so that it leaves frozen elements as they are.

The cost of a guard follows the region where that is a box, rows or few points; where most of a variable is held, or
many scattered elements, selecting from the whole variable is cheaper.
"""

from __future__ import annotations

import re
from enum import StrEnum

from graphfreeze.graph.uses import Write
from graphfreeze.selection import Box, Points, Region, Rows

SCATTER_SHARE = 100
"""Single elements are scattered as long as one in this many is held: the cost grows with each."""

_HAS_OUTPUT = re.compile(r"RngReadAndSkip|(Resource)?CountUpTo|Stateful\w+|AssignVariableXlaConcatND")
"""Writes whose results are used: they run, whatever is frozen."""
_WRITES_SEVERAL = frozenset({"SdcaShrinkL1", "NegTrain"})
"""Writes of several variables, none of which is a slot of another."""


class Guard(StrEnum):
    """How a write is kept off frozen elements."""

    NOTHING = "does not run"
    """The whole variable is frozen, and the op does nothing else."""
    WHOLE = "all put back"
    ROWS = "rows put back"
    BOX = "box put back"
    POINTS = "points put back"
    SELECT = "selected from old and new"


def guard_against(region: Region, write: Write, *, lite: bool = False) -> Guard:
    """``guard_of`` a write that a trace has found."""
    return guard_of(region, write.op, write.index, shared=write.shared, lite=lite)


def gives_value(op: str) -> bool:
    """Whether a write has a result of its own, which others take."""
    return _HAS_OUTPUT.fullmatch(op) is not None


def guard_of(region: Region, op: str, index: int, *, shared: bool = False, lite: bool = False) -> Guard:
    """The cheapest guard of a region against an op that takes the variable as data input ``index``.

    An op that updates another variable, and has this one as a slot, goes on running. Where another write may run at
    the same time (``shared``) nothing but frozen elements is written: a selection of the whole could undo that one.
    Else ``lite`` keeps to ops that LiteRT has, which has none that writes a part of a variable.
    """
    if region.is_whole:
        runs = index > 0 or gives_value(op) or op in _WRITES_SEVERAL
        return Guard.WHOLE if runs else Guard.NOTHING
    if (lite or region.count * 2 > region.size) and not shared:
        return Guard.SELECT
    match region:
        case Box():
            return Guard.BOX
        case Rows(axis=0):
            return Guard.ROWS
        case Points() if region.count * SCATTER_SHARE <= region.size:
            return Guard.POINTS
        case _:
            return Guard.POINTS if shared else Guard.SELECT
