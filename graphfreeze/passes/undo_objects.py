"""Takes everything of ours out of the object graphs, and gives flags and lists back what they said."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from graphfreeze.graph.trace import Trace
from graphfreeze.passes.marks import Marks, place_of
from graphfreeze.passes.undo_signature import remove_entries
from graphfreeze.passes.variables import CHILD
from graphfreeze.savedmodel import children, match_nodes, node_at
from graphfreeze.savedmodel.protos import Message, MetaGraphDef

_LISTS = ("trainable_variables", "variables", "non_trainable_variables")


def undo_objects(meta: MetaGraphDef, bundle_graph: Message | None, trace: Trace, marks: Marks) -> None:
    """Restores both object graphs. Node ids are counted anew where nodes go from the middle."""
    graph = meta.object_graph_def
    ours = {trace.variables[v].node_id for v in marks.ours} - {None}
    matched = {} if bundle_graph is None else match_nodes(graph, bundle_graph)
    _restore_flags(graph, trace, marks)
    _restore_lists(graph, bundle_graph, matched, marks, ours)
    gone = _ours(graph, ours)
    for name in [f for n in gone for f in graph.nodes[n].function.concrete_functions]:
        if name in graph.concrete_functions:
            del graph.concrete_functions[name]
        gone |= {i for i, n in enumerate(graph.nodes) if n.bare_concrete_function.concrete_function_name == name}
    for concrete in graph.concrete_functions.values():
        remove_entries(concrete.bound_inputs, [i for i, n in enumerate(concrete.bound_inputs) if n in gone])
    remove_nodes(graph, gone)
    for concrete in graph.concrete_functions.values():
        concrete.bound_inputs[:] = [_moved(n, gone) for n in concrete.bound_inputs]
    if bundle_graph is not None:
        in_bundle = {matched[n] for n in ours if n in matched}
        remove_nodes(bundle_graph, _ours(bundle_graph, in_bundle))


def _restore_flags(graph: Message, trace: Trace, marks: Marks) -> None:
    for frozen in marks.frozen:
        variable = trace.variables[frozen.variable]
        for node_id in (variable.node_id, *variable.copies):
            if node_id is not None:
                graph.nodes[node_id].variable.trainable = frozen.fact.trainable


def _restore_lists(
    graph: Message, bundle_graph: Message | None, matched: Mapping[int, int], marks: Marks, ours: Collection[int | None]
) -> None:
    root = children(graph, 0)
    places = {note["variable"]: place_of(graph, marks.info, note["variable"]) for note in marks.info.get("lists", ())}
    for note in reversed(marks.info.get("lists", ())):
        node_id = places.get(note["variable"])
        found = root.get(note["list"])
        if node_id is None or found is None:
            continue
        entries = [c.node_id for c in graph.nodes[found].children]
        if note["position"] is None:
            entries = [n for n in entries if n != node_id]
        else:
            place = note["position"]
            entries = [*entries[:place], node_id, *entries[place + note["parts"] :]]
        _set_entries(graph, bundle_graph, matched, found, entries)
    for name in _LISTS:
        found = root.get(name)
        if found is not None:
            entries = [c.node_id for c in graph.nodes[found].children]
            if any(n in ours for n in entries):
                _set_entries(graph, bundle_graph, matched, found, [n for n in entries if n not in ours])


def _set_entries(
    graph: Message, bundle_graph: Message | None, matched: Mapping[int, int], found: int, entries: Iterable[int]
) -> None:
    graphs: list[tuple[Message, int | None, Mapping[int, int] | None]] = [(graph, found, None)]
    if bundle_graph is not None:
        graphs.append((bundle_graph, matched.get(found), matched))
    kept = list(entries)
    for proto, number, ids in graphs:
        if number is None:
            continue
        others = [c for c in proto.nodes[number].children if not c.local_name.isdigit()]
        others = [type(c).FromString(c.SerializeToString()) for c in others]
        del proto.nodes[number].children[:]
        for i, node_id in enumerate(kept):
            target = node_id if ids is None else ids.get(node_id)
            if target is not None:
                proto.nodes[number].children.add(node_id=target, local_name=str(i))
        proto.nodes[number].children.extend(others)


def _ours(graph: Message, variables: Collection[int | None]) -> set[int]:
    """Our variables, and what hangs under ``graphfreeze`` alone."""
    gone = {n for n in variables if n is not None}
    top = children(graph, 0).get(CHILD)
    pending = [] if top is None else [top]
    while pending:
        node_id = pending.pop()
        gone.add(node_id)
        for child in graph.nodes[node_id].children:
            kind = graph.nodes[child.node_id].WhichOneof("kind") if hasattr(graph.nodes[child.node_id], "variable") else None
            is_value = kind == "variable" or len(getattr(graph.nodes[child.node_id], "attributes", ())) > 0
            if not is_value and child.node_id not in gone and child.node_id != 0:
                pending.append(child.node_id)
    return gone


def _moved(number: int, gone: Collection[int]) -> int:
    return number - sum(g < number for g in gone)


def remove_nodes(graph: Message, gone: Collection[int]) -> None:
    """Removes nodes, every reference to them, and closes the gaps in the numbering. Works on both object graphs."""
    if not gone:
        return
    for node in graph.nodes:
        fields: list[Any] = [node.children, getattr(node, "dependencies", ())]
        for field in fields:
            remove_entries(field, [i for i, c in enumerate(field) if c.node_id in gone])
            for child in field:
                child.node_id = _moved(child.node_id, gone)
        slots = node.slot_variables
        dead = [i for i, s in enumerate(slots) if {s.original_variable_node_id, s.slot_variable_node_id} & set(gone)]
        remove_entries(slots, dead)
        for slot in slots:
            slot.original_variable_node_id = _moved(slot.original_variable_node_id, gone)
            slot.slot_variable_node_id = _moved(slot.slot_variable_node_id, gone)
        for saveable in getattr(node, "saveable_objects", {}).values():
            saveable.save_function = _moved(saveable.save_function, gone)
            saveable.restore_function = _moved(saveable.restore_function, gone)
    kept = [n.SerializeToString() for i, n in enumerate(graph.nodes) if i not in gone]
    node_type = type(graph.nodes[0])
    del graph.nodes[:]
    graph.nodes.extend(node_type.FromString(data) for data in kept)
