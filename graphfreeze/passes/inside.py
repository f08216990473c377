"""What must hold of functions that train inside the graph, beyond the variables that they train."""

from __future__ import annotations

from graphfreeze.graph.entries import reached_bodies
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.slots import slot_writes
from graphfreeze.graph.uses import Body, Trace
from graphfreeze.planning.guards import Guard, guard_against
from graphfreeze.savedmodel.protos import MetaGraphDef
from graphfreeze.selection import Region


def still_slots(meta: MetaGraphDef, trace: Trace, function: str, frozen: dict[int, Region]) -> set[int]:
    """The numbers of slots that a function writes only on behalf of variables that are frozen whole.

    ``meta`` is of the plain model; ``frozen`` says by the variable's number what of it is frozen.
    """
    library = {f.signature.name: f for f in meta.graph_def.library.function}
    still: set[int] = set()
    moving: set[int] = set()
    for body in reached_bodies(trace, function):
        silent = _silent(Scope(library[body.key.function]), body, trace, frozen)
        still |= {w.variable for w in body.writes if w.node in silent}
        moving |= {w.variable for w in body.writes if w.node not in silent}
    return still - moving - frozen.keys()


def _silent(scope: Scope, body: Body, trace: Trace, frozen: dict[int, Region]) -> set[str]:
    """The nodes of writes that serve only variables that are frozen whole."""
    silent = [w for w in body.writes if w.variable in frozen and guard_against(frozen[w.variable], w) is Guard.NOTHING]
    return {w.node for w in (*silent, *slot_writes(scope, body, trace.variables, silent))}
