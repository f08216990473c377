"""Gives random ops of a graph a seed, so that two models that hold the same ones draw the same numbers.

An op with the seeds 0 and 0 takes another seed in every process and at every load. One that has a seed begins anew with
it at every load. The seed comes from the node's name, which a rewrite does not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from graphfreeze.graph.refs import attr_of
from graphfreeze.savedmodel.protos import Message, MetaGraphDef

_RANDOM = frozenset(
    {
        *(
            "RandomUniform",
            "RandomUniformInt",
            "RandomStandardNormal",
            "TruncatedNormal",
            "ParameterizedTruncatedNormal",
        ),
        *("RandomShuffle", "Multinomial", "RandomGamma", "RandomPoisson", "RandomPoissonV2"),
    }
)
"""Ops with state that take their seed as an attribute; others take it from a variable or an input."""
_SEEDS = ("seed", "seed2")
_LARGEST = (1 << 31) - 1


def seed_random_ops(meta: MetaGraphDef) -> int:
    """Seeds every random op that has none; returns how many there were."""
    count = 0
    for scope in (meta.graph_def.node, *(f.node_def for f in meta.graph_def.library.function)):
        for node in scope:
            # A saved model leaves out what is 0.
            if node.op in _RANDOM and not any(attr_of(node, name).i for name in _SEEDS):
                node.attr["seed"].i = 1 + crc32(node.name.encode()) % _LARGEST
                count += 1
    return count


def random_nodes(graph: Message) -> Iterator[tuple[str, bool]]:
    """Every random op of a GraphDef that keeps a counter to itself: its name and op, and whether it has a seed."""
    for scope in (graph.node, *(f.node_def for f in graph.library.function)):
        for node in scope:
            if node.op in _RANDOM:
                yield f"{node.name} ({node.op})", any(attr_of(node, name).i for name in _SEEDS)
