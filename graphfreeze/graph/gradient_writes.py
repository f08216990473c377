"""What a write takes as the variable's gradient, or as the update that is made of it."""

from __future__ import annotations

import re
from collections.abc import Collection

from graphfreeze.graph.gradient_walk import Ids, Side, Step, Walk
from graphfreeze.graph.refs import attr_of
from graphfreeze.graph.scope import Scope, Use
from graphfreeze.graph.uses import Write

_SCATTER = re.compile(r"(Resource)?Scatter(Add|Sub|Update|Mul|Div|Min|Max)")
_SPARSE = re.compile(r"(Resource)?SparseApply\w+")
_OTHER = re.compile(r"(Resource)?(Scatter|StridedSlice)\w+")
"""Writes of elements that are named one by one or by bounds."""


def write_steps(scope: Scope, walk: Walk, write: Write, handles: Collection[str]) -> tuple[list[Step], list[Side]]:
    """Where the walk starts, and what stands beside it: rates and the like."""
    node = scope.nodes[write.node]
    inputs = scope.data_inputs(node)
    others = [i for i, text in enumerate(inputs) if i and scope.canonical(text) not in handles]
    if _OTHER.fullmatch(node.op) and not _SCATTER.fullmatch(node.op):
        return [], []
    if _SCATTER.fullmatch(node.op):
        ids, values = Ids(inputs[1], attr_of(node, "Tindices").type), [2]
    elif _SPARSE.fullmatch(node.op):
        # The gradient is the first input that has rows, its ids are the next.
        values = [i for i in others if scope.static_shape(inputs[i]) and walk.fits(inputs[i], Ids("", 0))][:1]
        if not values:
            return [], []
        ids = Ids(inputs[values[0] + 1], attr_of(node, "Tindices").type)
    else:
        dense = [i for i in others if walk.fits(inputs[i], None)]
        sides = [Side(inputs[i]) for i in others if i not in dense]
        return [Step(inputs[i], None, Use(node.name, i)) for i in dense], sides
    sides = [Side(inputs[i]) for i in others if i not in values and inputs[i] != ids.ref]
    return [Step(inputs[i], ids, Use(node.name, i)) for i in values], sides
