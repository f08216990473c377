"""How the parts of a partitioned table are looked up: which of its stored rows an id stands for.

``tf.nn.embedding_lookup`` deals ids out over the parts. With ``div`` they run on from part to part, so an id is the
number of its row in the whole table; with ``mod`` (the default) id ``i`` is row ``i // n`` of part ``i % n``, for ``n``
parts (embedding_ops.py of TensorFlow).
"""

from __future__ import annotations

from graphfreeze.graph.attrs import tensor_value
from graphfreeze.graph.refs import producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.uses import Body
from graphfreeze.savedmodel.protos import NodeDef

_GATHERS = frozenset(("Gather", "GatherV2", "ResourceGather"))
_SAME = frozenset(("Cast", "Identity"))


def find_mod_lookups(scope: Scope, body: Body) -> dict[int, int]:
    """Variable -> over how many parts ids are dealt out by ``mod`` where it is looked up."""
    found: dict[int, int] = {}
    for read in body.reads:
        names = {lookup.node for lookup in read.access.lookups}
        # A value that is also taken as a whole is no lookup to a merge, but its gathers are.
        names |= {use.node for use in scope.uses(scope.ref(read.node, read.op)) if use.result is None}
        for name in names:
            node = scope.nodes[name]
            parts = _dealt_out(scope, node) if node.op in _GATHERS else None
            if parts is not None:
                found[read.variable] = parts
    return found


def _dealt_out(scope: Scope, lookup: NodeDef) -> int | None:
    """By how many the ids of a lookup were divided: it takes ``id // n`` where ``id % n`` is the number of the part."""
    partition = _behind(scope, scope.data_inputs(lookup)[1])
    if partition is None or partition.op != "DynamicPartition":
        return None
    quotient, remainder = (_behind(scope, text) for text in scope.data_inputs(partition)[:2])
    if quotient is None or remainder is None or (quotient.op, remainder.op) != ("FloorDiv", "FloorMod"):
        return None
    if scope.canonical(quotient.input[0]) != scope.canonical(remainder.input[0]):
        return None
    divisors = [_behind(scope, node.input[1]) for node in (quotient, remainder)]
    values = [int(tensor_value(d.attr["value"].tensor)) for d in divisors if d is not None and d.op == "Const"]
    return values[0] if len(values) == 2 and values[0] == values[1] else None


def _behind(scope: Scope, text: str) -> NodeDef | None:
    node = scope.nodes.get(producer(text))
    while node is not None and node.op in _SAME:
        node = scope.nodes.get(producer(node.input[0]))
    return node
