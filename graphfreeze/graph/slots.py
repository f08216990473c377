"""Finds the statistics that an optimizer inside a graph keeps of a variable, where it writes them op by op.

``ResourceApplyAdam`` and its like take their slots themselves, and objects of Keras say what they hold. Else a slot is
told by what is done with it: a floating variable of the same shape, not trainable, that the same function writes, that
the update of the variable is computed from, and that no write of another variable needs. So counters and rates, which
many updates share, are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from graphfreeze.graph.ops import READS
from graphfreeze.graph.refs import producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.uses import Body, Write
from graphfreeze.graph.variables import Variable, is_float


def body_slots(scope: Scope, body: Body, variables: Sequence[Variable]) -> set[int]:
    """The slots of all variables that train and that the body updates."""
    taken = {w.variable for w in body.writes if w.index > 0}
    return taken | {w.variable for w in slot_writes(scope, body, variables, [w for w in body.writes if w.index == 0])}


def slot_writes(scope: Scope, body: Body, variables: Sequence[Variable], updates: Sequence[Write]) -> list[Write]:
    """The writes of slots that serve nothing but these updates."""
    trained = [w for w in updates if variables[w.variable].trainable]
    if not trained or len({w.variable for w in body.writes}) == 1:
        return []
    needs = _needs(scope, body)
    found: dict[int, None] = {}
    for variable in dict.fromkeys(w.variable for w in trained):
        own = {variable}
        for candidate in sorted(needs[variable] & needs.keys() - own):
            users = {v for v, needed in needs.items() if candidate in needed} - {candidate}
            # Another slot may need it (the largest of all velocities), if that one serves the same variable.
            only = all(u in own or {v for v, n in needs.items() if u in n} - {u} <= own | {candidate} for u in users)
            if only and _may_be_slot(variables[candidate], variables[variable]):
                found[candidate] = None
    return [w for w in body.writes if w.variable in found]


def _may_be_slot(candidate: Variable, variable: Variable) -> bool:
    return is_float(candidate.dtype) and not candidate.trainable and candidate.shape == variable.shape


def _needs(scope: Scope, body: Body) -> dict[int, set[int]]:
    """Variable that is written -> variables whose values its writes are computed from."""
    behind = _variables_behind(scope, body)
    found: dict[int, set[int]] = {}
    for write in body.writes:
        inputs = [t for i, t in enumerate(scope.data_inputs(scope.nodes[write.node])) if i != write.index]
        bits = reduce(or_, (behind.get(producer(t), 0) for t in inputs), 0)
        found.setdefault(write.variable, set()).update(i for i in range(bits.bit_length()) if bits >> i & 1)
    return found


def _variables_behind(scope: Scope, body: Body) -> dict[str, int]:
    """Node -> the variables that it is computed from, one bit each. A graph may hold tens of thousands of nodes."""
    own: dict[str, int] = {}
    ends: set[str] = set()
    for read in body.reads:
        own[read.node] = own.get(read.node, 0) | 1 << read.variable
        if read.op in READS or read.op == "Identity":
            ends.add(read.node)
    found: dict[str, int] = {}
    changed = True
    while changed:  # nodes need not stand in order, and loops of TF1 lead back
        changed = False
        for name, node in scope.nodes.items():
            bits = own.get(name, 0)
            if name not in ends:
                bits = reduce(or_, (found.get(producer(t), 0) for t in scope.data_inputs(node)), bits)
            changed |= bits != found.get(name, 0)
            found[name] = bits
    return found
