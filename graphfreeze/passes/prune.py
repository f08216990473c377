"""Pass ``prune``: takes out functions that the rewrite replaced and that nothing refers to any more.

Only replaced functions go; one that nobody called before stays (tf_keras links some by string attributes only).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from graphfreeze.passes.state import Work
from graphfreeze.savedmodel.protos import MetaGraphDef, NodeDef


def prune_functions(work: Work) -> None:
    """Removes replaced functions that are not reachable."""
    remove_unreachable(work.meta, work.replaced)


def remove_unreachable(meta: MetaGraphDef, replaced: Collection[str]) -> None:
    """Removes those of the functions that neither the model nor a function that stays refers to."""
    library = meta.graph_def.library
    by_name = {f.signature.name: f for f in library.function}
    spelled = [_spelled(name) for name in by_name if name in replaced]
    pending = [name for name in by_name if name not in replaced] + list(_roots(meta))
    reached: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in by_name or name in reached:
            continue
        reached.add(name)
        # Whether a function refers to any of them is seen from its bytes, ten times as fast as from its attributes.
        data = by_name[name].SerializeToString()
        if any(text in data for text in spelled):
            pending.extend(n for node in by_name[name].node_def for n in called_functions(node))
    for index in reversed(range(len(library.function))):
        if library.function[index].signature.name not in reached:
            del library.function[index]


def _spelled(name: str) -> bytes:
    """How a field of protobuf holds a function's name, its tag left out: the length, then the text."""
    data: bytes = NodeDef(op=name).SerializeToString()
    return data[1:]


def _roots(meta: MetaGraphDef) -> Iterator[str]:
    yield from meta.object_graph_def.concrete_functions
    for node in meta.graph_def.node:
        yield from called_functions(node)
    for gradient in meta.graph_def.library.registered_gradients:
        yield gradient.gradient_func


def called_functions(node: NodeDef) -> Iterator[str]:
    """Names of all functions that a node's attributes hold, and its op, which may name a function too."""
    yield node.op
    for value in node.attr.values():
        if value.WhichOneof("value") == "func":
            yield value.func.name
        elif value.WhichOneof("value") == "list":
            yield from (f.name for f in value.list.func)
