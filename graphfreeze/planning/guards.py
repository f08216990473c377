"""Which guard a write in the graph gets, so that it leaves frozen elements as they are.

The cost of a guard follows the region where that is a box, rows or few points; where most of a variable is held, or
many scattered elements, selecting from the whole variable is cheaper.
"""

from __future__ import annotations

import re
from enum import StrEnum

from graphfreeze.selection import Box, Points, Region, Rows

SCATTER_SHARE = 100
"""Single elements are scattered as long as one in this many is held: the cost grows with each."""

_HAS_OUTPUT = re.compile(r"RngReadAndSkip|ResourceCountUpTo|Stateful\w+|AssignVariableXlaConcatND")
"""Writes whose results are used: they run, whatever is frozen."""


class Guard(StrEnum):
    """How a write is kept off frozen elements."""

    NOTHING = "does not run"
    """The whole variable is frozen, and the op does nothing else."""
    WHOLE = "all put back"
    ROWS = "rows put back"
    BOX = "box put back"
    POINTS = "points put back"
    SELECT = "selected from old and new"


def guard_of(region: Region, op: str, index: int) -> Guard:
    """The cheapest guard of a region against an op that takes the variable as data input ``index``.

    An op that updates another variable, and has this one as a slot, goes on running.
    """
    if region.is_whole:
        return Guard.NOTHING if index == 0 and not _HAS_OUTPUT.fullmatch(op) else Guard.WHOLE
    if region.count * 2 > region.size:
        return Guard.SELECT
    match region:
        case Box():
            return Guard.BOX
        case Rows(axis=0):
            return Guard.ROWS
        case Points() if region.count * SCATTER_SHARE <= region.size:
            return Guard.POINTS
        case _:
            return Guard.SELECT
