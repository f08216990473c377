"""Keeps the list of ops true that TensorFlow writes beside a graph when it saves one."""

from __future__ import annotations

from collections.abc import Collection

from graphfreeze.graph.attrs import OP
from graphfreeze.graph.refs import attr_of
from graphfreeze.savedmodel.protos import MetaGraphDef, NodeDef, OpDef

_FOLLOWED = ("PartitionedCall", "StatefulPartitionedCall")


def silenced_ops(meta: MetaGraphDef) -> list[bytes]:
    """Definitions of the ops of writes that a rewrite silenced."""
    lists = [meta.graph_def.node, *(f.node_def for f in meta.graph_def.library.function)]
    found = {node.attr[OP].s for nodes in lists for node in nodes if OP in node.attr}
    return sorted(found)


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


def restore_ops(meta: MetaGraphDef, before: set[str], silenced: Collection[bytes]) -> None:
    """Takes out of the list what only our nodes used; ``before`` are the ops that were used with them.

    What was silenced when the model was saved again comes back to its place: the list is in the order of names.
    """
    listed = meta.meta_info_def.stripped_op_list.op
    used = used_ops(meta)
    gone = before - used
    kept = [OpDef.FromString(op.SerializeToString()) for op in listed if op.name not in gone]
    names = {op.name for op in kept}
    back = [op for op in map(OpDef.FromString, silenced) if op.name in used and op.name not in names]
    if listed and (back or len(kept) != len(listed)):
        del listed[:]
        listed.extend(sorted([*kept, *back], key=lambda op: op.name) if back else kept)
