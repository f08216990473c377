"""Whether a model carries a freeze: the first question of every command, answered without what reads one."""

from __future__ import annotations

from collections.abc import Iterator

from graphfreeze.graph.attrs import ADDED, FACT, attr_bytes
from graphfreeze.graph.variables import is_tf2
from graphfreeze.passes.info import INFO, INFO_FUNCTION
from graphfreeze.passes.variables import CHILD
from graphfreeze.savedmodel import Draft, children
from graphfreeze.savedmodel.protos import MetaGraphDef, NodeDef


def is_rewritten(draft: Draft) -> bool:
    """Whether a model carries a freeze."""
    return any(has_marks(meta) for meta in draft.model.proto.meta_graphs)


def has_marks(meta: MetaGraphDef) -> bool:
    """Whether a meta graph carries a freeze, or what is left of one."""
    if any(True for _ in info_functions(meta)) or any(True for _ in info_nodes(meta)):
        return True
    return any(FACT in node.attr for f in meta.graph_def.library.function for node in f.node_def)


def info_functions(meta: MetaGraphDef) -> Iterator[tuple[int, int, str]]:
    """(object, its child ``graphfreeze``, the concrete function ``info`` of that)."""
    graph = meta.object_graph_def
    stem = INFO_FUNCTION.rsplit("_", 1)[0]
    for parent, node in enumerate(graph.nodes):
        for child in node.children:
            if child.local_name != CHILD:
                continue
            info = children(graph, child.node_id).get(INFO)
            names = [] if info is None else graph.nodes[info].function.concrete_functions
            # A user may have something else of that name.
            yield from ((parent, child.node_id, name) for name in names if name.startswith(stem))


def info_nodes(meta: MetaGraphDef) -> Iterator[NodeDef]:
    """The nodes of a main graph that tell of a rewrite; none in a TF2 model, which tells of it elsewhere."""
    for node in () if is_tf2(meta) else meta.graph_def.node:
        if node.op == "Const" and attr_bytes(node, ADDED) == b"info":
            yield node
