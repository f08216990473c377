"""Takes phases out of a model: their signatures, the variants of functions, and the calls of the main graph.

They go before anything else is undone. What is left is a model with one freeze, that of the first phase, whose parts
then go back into their variables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from graphfreeze.graph.callables import concrete_names
from graphfreeze.graph.entries import SIGNATURES
from graphfreeze.graph.ops import CALLS
from graphfreeze.graph.refs import producer
from graphfreeze.graph.scope import Scope
from graphfreeze.passes.found import Holder, Marks
from graphfreeze.passes.phases import PHASES
from graphfreeze.passes.prune import called_functions, remove_unreachable
from graphfreeze.savedmodel import children
from graphfreeze.savedmodel.protos import Message, MetaGraphDef, NodeDef

_COUNTED = re.compile(r"(?P<stem>(?:Stateful)?PartitionedCall)(?:_(?P<number>\d+))?")


def phase_names(marks: Marks) -> tuple[str, ...]:
    """The phases that a model says it has."""
    return tuple(dict.fromkeys(p["name"] for p in marks.phases))


def phase_signatures(meta: MetaGraphDef, marks: Marks) -> set[int]:
    """Objects of signatures that belong to phases; they are not below ``graphfreeze``."""
    found = children(meta.object_graph_def, 0).get(SIGNATURES)
    held = {} if found is None else children(meta.object_graph_def, found)
    return {node for key, node in held.items() if _is_of_phase(key, phase_names(marks))}


def phase_functions(meta: MetaGraphDef, marks: Marks) -> set[str]:
    """Concrete functions that only phases name."""
    graph = meta.object_graph_def
    inside = phase_signatures(meta, marks)
    for holder in marks.holders:
        inside |= set(_below(graph, holder))
    named = {n for i in inside for n in concrete_names(graph.nodes[i])}
    # Below a function of its own TensorFlow lists its concrete functions again, for all that share them.
    others = (n for i, n in enumerate(graph.nodes) if i not in inside and n.WhichOneof("kind") == "function")
    outside = (n for i, n in enumerate(graph.nodes) if i not in inside and i in _signatures(graph))
    return named - {name for node in (*others, *outside) for name in concrete_names(node)}


def undo_phases(meta: MetaGraphDef, marks: Marks, functions: Collection[str]) -> None:
    """Takes signatures and calls of phases out of the main graph, and ``functions`` out of the library.

    ``functions`` are what ``phase_functions`` gave before objects were taken out.
    """
    names = phase_names(marks)
    if not names:
        return
    gone = {key for key in meta.signature_def if _is_of_phase(key, names)}
    used = {producer(t) for key in gone for t in _tensors(meta, key)}
    kept = {producer(t) for key in meta.signature_def if key not in gone for t in _tensors(meta, key)}
    for key in gone:
        del meta.signature_def[key]
    _remove_nodes(meta, marks, used - kept)
    library = {f.signature.name: f for f in meta.graph_def.library.function}
    pending, reached = list(functions), set[str]()
    while pending:
        name = pending.pop()
        if name in library and name not in reached:
            reached.add(name)
            pending += [n for node in library[name].node_def for n in called_functions(node)]
    remove_unreachable(meta, reached)


def _is_of_phase(key: str, phases: Collection[str]) -> bool:
    return "@" in key and key.rpartition("@")[2] in phases


def _tensors(meta: MetaGraphDef, key: str) -> Iterator[str]:
    signature = meta.signature_def[key]
    yield from (info.name for info in (*signature.inputs.values(), *signature.outputs.values()))


def _signatures(graph: Message) -> set[int]:
    found = children(graph, 0).get(SIGNATURES)
    return set() if found is None else set(children(graph, found).values())


def _below(graph: Message, holder: Holder) -> Iterator[int]:
    """Everything below ``graphfreeze/phases``, functions' own concrete functions left out."""
    found = children(graph, holder.node).get(PHASES)
    pending = [] if found is None else [found]
    while pending:
        number = pending.pop()
        yield number
        if graph.nodes[number].WhichOneof("kind") == "user_object":
            pending.extend(c.node_id for c in graph.nodes[number].children)


def _remove_nodes(meta: MetaGraphDef, marks: Marks, first: Collection[str]) -> None:
    """Removes placeholders and calls of the main graph that served only the signatures that went."""
    scope = Scope(meta.graph_def)
    gone = {n for n in first if n in scope.nodes and _serves(scope.nodes[n])}
    kept = [n.SerializeToString() for n in scope.node_list if n.name not in gone]
    del scope.node_list[:]
    scope.node_list.extend(NodeDef.FromString(data) for data in kept)
    if marks.saved_again:
        _close_gaps(meta, gone)


def _close_gaps(meta: MetaGraphDef, gone: Collection[str]) -> None:
    """TensorFlow counted the calls of the main graph with those that went; now without them."""
    counted = {m["stem"] for n in gone if (m := _COUNTED.fullmatch(n)) is not None}
    names: dict[str, str] = {}
    for stem in counted:
        found = [m for n in meta.graph_def.node if (m := _COUNTED.fullmatch(n.name)) and m["stem"] == stem]
        for i, match in enumerate(sorted(found, key=lambda m: int(m["number"] or 0))):
            names[match[0]] = f"{stem}_{i}" if i else stem
    renamed = {old: new for old, new in names.items() if old != new}
    for node in meta.graph_def.node:
        node.name = renamed.get(node.name, node.name)
        node.input[:] = [_renamed(text, renamed) for text in node.input]
    for signature in meta.signature_def.values():
        for info in (*signature.inputs.values(), *signature.outputs.values()):
            info.name = _renamed(info.name, renamed)
    saver = meta.saver_def
    saver.restore_op_name = _renamed(saver.restore_op_name, renamed)
    saver.save_tensor_name = _renamed(saver.save_tensor_name, renamed)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    name = producer(text)
    return text.replace(name, names[name], 1) if name in names else text


def _serves(node: NodeDef) -> bool:
    return node.op == "Placeholder" or node.op in CALLS
