"""Takes everything of ours out of the object graphs, and gives flags and lists back what they said."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

from graphfreeze.graph.uses import Trace
from graphfreeze.passes.found import Marks
from graphfreeze.passes.undo_lists import Objects, restore_lists
from graphfreeze.passes.undo_phases import phase_functions, phase_signatures
from graphfreeze.passes.undo_signature import remove_entries
from graphfreeze.savedmodel import match_nodes, refresh_checkpoint_values
from graphfreeze.savedmodel.protos import Message, MetaGraphDef


def undo_objects(meta: MetaGraphDef, bundle_graph: Message | None, trace: Trace, marks: Marks) -> dict[int, int]:
    """Restores both object graphs; returns old number -> new number of each node of the saved one that stays."""
    graph = meta.object_graph_def
    matched = {} if bundle_graph is None else match_nodes(graph, bundle_graph)
    ours = nodes_of(trace, marks.ours)
    _restore_flags(graph, trace, marks)
    restore_lists(Objects(graph, bundle_graph, matched), trace, marks, ours)
    holders = {h.node for h in marks.holders}
    signatures = phase_signatures(meta, marks)
    gone = ours | hanging(graph, holders, ours) | signatures
    remove_functions(graph, gone, phase_functions(meta, marks))
    moved = remove_nodes(graph, gone, in_order=marks.saved_again)
    for concrete in graph.concrete_functions.values():
        concrete.bound_inputs[:] = [moved[n] for n in concrete.bound_inputs if n in moved]
    if bundle_graph is not None:
        ours = {matched[n] for n in ours if n in matched}
        gone = ours | hanging(bundle_graph, {matched[h] for h in holders if h in matched}, ours)
        gone |= {matched[n] for n in signatures if n in matched}
        remove_nodes(bundle_graph, gone, in_order=marks.saved_again)
        if marks.saved_again:
            refresh_checkpoint_values(bundle_graph)
    return moved


def nodes_of(trace: Trace, variables: Collection[int]) -> set[int]:
    """Object-graph nodes of variables, their copies included."""
    found = (n for v in variables for n in (trace.variables[v].node_id, *trace.variables[v].copies))
    return {n for n in found if n is not None}


def _restore_flags(graph: Message, trace: Trace, marks: Marks) -> None:
    flags = {f.variable: f.fact.trainable for f in marks.frozen} | dict.fromkeys(marks.enabled, False)
    for variable, trainable in flags.items():
        for node_id in nodes_of(trace, [variable]):
            graph.nodes[node_id].variable.trainable = trainable


def hanging(graph: Message, holders: Collection[int], ours: Collection[int]) -> set[int]:
    """What only a child ``graphfreeze`` leads to; never a value that is not ours."""
    below = _reached(graph, holders, ())
    outside = _reached(graph, [0], {*holders, *ours})
    return {n for n in below if n not in outside and (n in holders or not _is_value(graph.nodes[n]))}


def _reached(graph: Message, start: Collection[int], without: Collection[int]) -> dict[int, None]:
    """Nodes that children lead to, breadth first."""
    found: dict[int, None] = {}
    pending = deque(n for n in start if n not in without)
    while pending:
        number = pending.popleft()
        if number not in found:
            found[number] = None
            pending.extend(c.node_id for c in graph.nodes[number].children if c.node_id not in without)
    return found


def _is_value(node: Message) -> bool:
    """Whether a node of either graph is a variable or another object with a value."""
    if hasattr(node, "attributes"):
        return len(node.attributes) > 0
    return node.WhichOneof("kind") not in ("user_object", "function", "bare_concrete_function")


def remove_functions(graph: Message, gone: set[int], more: Collection[str] = ()) -> None:
    """Removes the concrete functions of the objects that go; ``gone`` grows by their bare objects.

    Where phases share a function with what stays, it stays; ``more`` are functions of phases alone.
    """
    kept = {f for i, n in enumerate(graph.nodes) if i not in gone for f in n.function.concrete_functions}
    for name in {f for n in gone for f in graph.nodes[n].function.concrete_functions} - kept | set(more):
        if name in graph.concrete_functions:
            del graph.concrete_functions[name]
        gone |= {i for i, n in enumerate(graph.nodes) if n.bare_concrete_function.concrete_function_name == name}


def remove_nodes(graph: Message, gone: Collection[int], *, in_order: bool) -> dict[int, int]:
    """Removes nodes and every reference to them, and closes the gaps in the numbering. Works on both object graphs.

    ``in_order`` numbers the nodes as TensorFlow does: breadth first, then what no child leads to.
    """
    kept = [i for i in range(len(graph.nodes)) if i not in gone]
    if in_order:
        first = _reached(graph, [0], gone)
        kept = [*first, *(i for i in kept if i not in first)]
    moved = {old: new for new, old in enumerate(kept)}
    if kept == list(range(len(graph.nodes))):
        return moved
    for node in graph.nodes:
        _remove_references(node, moved)
    data = [graph.nodes[i].SerializeToString() for i in kept]
    node_type = type(graph.nodes[0])
    del graph.nodes[:]
    graph.nodes.extend(node_type.FromString(d) for d in data)
    return moved


def _remove_references(node: Message, moved: dict[int, int]) -> None:
    fields: list[Any] = [node.children, getattr(node, "dependencies", ())]
    for field in fields:
        remove_entries(field, [i for i, c in enumerate(field) if c.node_id not in moved])
        for child in field:
            child.node_id = moved[child.node_id]
    slots = node.slot_variables
    pairs = [(s.original_variable_node_id, s.slot_variable_node_id) for s in slots]
    remove_entries(slots, [i for i, pair in enumerate(pairs) if not moved.keys() >= set(pair)])
    for slot in slots:
        slot.original_variable_node_id = moved[slot.original_variable_node_id]
        slot.slot_variable_node_id = moved[slot.slot_variable_node_id]
    for saveable in getattr(node, "saveable_objects", {}).values():
        saveable.save_function = moved.get(saveable.save_function, saveable.save_function)
        saveable.restore_function = moved.get(saveable.restore_function, saveable.restore_function)
