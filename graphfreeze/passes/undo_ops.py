"""Keeps the list of ops true that TensorFlow writes beside a graph when it saves one."""

from __future__ import annotations

from graphfreeze.graph.refs import attr_of
from graphfreeze.savedmodel.protos import MetaGraphDef, NodeDef

_FOLLOWED = ("PartitionedCall", "StatefulPartitionedCall")


def used_ops(meta: MetaGraphDef) -> set[str]:
    """The ops that TensorFlow lists: those of the main graph, and of functions that plain calls reach from there."""
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    used: set[str] = set()
    pending: list[NodeDef] = list(meta.graph_def.node)
    while pending:
        node = pending.pop()
        names = [node.op, *([attr_of(node, "f").func.name] if node.op in _FOLLOWED else [])]
        for name in names:
            if name not in used:
                used.add(name)
                pending.extend(functions[name].node_def if name in functions else ())
    return used - functions.keys()


def restore_ops(meta: MetaGraphDef, before: set[str]) -> None:
    """Takes out of the list what only our nodes used; ``before`` are the ops that were used with them."""
    listed = meta.meta_info_def.stripped_op_list.op
    gone = before - used_ops(meta)
    kept = [op.SerializeToString() for op in listed if op.name not in gone]
    if len(kept) != len(listed):
        kind = type(listed[0])
        del listed[:]
        listed.extend(kind.FromString(data) for data in kept)
