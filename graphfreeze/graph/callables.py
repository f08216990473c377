"""Functions that a program calls by name: attributes of the root, and of objects below it that have public names.

What Keras keeps for itself (names that begin with ``_``, entries of lists) is left out; nobody calls it on a loaded
model.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator

from graphfreeze.graph.entries import SIGNATURES
from graphfreeze.savedmodel import NodePath
from graphfreeze.savedmodel.protos import Message, MetaGraphDef

OURS = "graphfreeze"
"""The child of the root that holds everything of ours."""
_CALL = "__call__"
_KINDS = ("function", "bare_concrete_function")


def public_functions(meta: MetaGraphDef) -> Iterator[tuple[NodePath, int]]:
    """(child names from the root, node) of every function, aliases included, in the order of the object graph."""
    graph = meta.object_graph_def
    seen = {0}
    pending: list[tuple[NodePath, int]] = [((), 0)]
    while pending:
        above, number = pending.pop(0)
        for child in graph.nodes[number].children:
            path = (*above, child.local_name)
            if not _is_public(child.local_name) or path in ((OURS,), (SIGNATURES,)):
                continue
            if _is_function(graph.nodes[child.node_id]):
                yield path, child.node_id
            elif graph.nodes[child.node_id].WhichOneof("kind") == "user_object" and child.node_id not in seen:
                seen.add(child.node_id)
                pending.append((path, child.node_id))


def public_signatures(meta: MetaGraphDef) -> tuple[str, ...]:
    """Keys of the signatures that can be called, sorted."""
    return tuple(sorted(key for key in meta.signature_def if not key.startswith("__")))


def concrete_names(node: Message) -> list[str]:
    """The concrete functions that a node of the object graph names."""
    if node.WhichOneof("kind") == "bare_concrete_function":
        return [node.bare_concrete_function.concrete_function_name]
    return list(node.function.concrete_functions)


def _is_function(node: Message) -> bool:
    return node.WhichOneof("kind") in _KINDS and any(concrete_names(node))


def _is_public(name: str) -> bool:
    if name == _CALL:
        return True
    return name.isidentifier() and not name.startswith("_") and not keyword.iskeyword(name)
