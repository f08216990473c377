"""Pass ``flags``: makes every record of what trains tell the truth.

The flag of a SavedVariable is what ``tf.saved_model.load`` and TFSMLayer go by; the root's lists
(``trainable_variables``, ``variables``, ...) are what hub.KerasLayer and Keras's own code go by. A new part takes the
place of its variable in the first list and every new variable joins the second. Where a list leaves a variable out that
nothing else in the object graph holds, ``graphfreeze/held`` keeps it, or it could not be saved again.
"""

from __future__ import annotations

from graphfreeze.graph.variables import Variable
from graphfreeze.lowering.merge import Merge
from graphfreeze.passes.state import Stored, Work
from graphfreeze.passes.variables import CHILD
from graphfreeze.savedmodel import append_node, children, match_nodes, object_paths
from graphfreeze.selection import Strategy

_LISTS = ("trainable_variables", "variables", "non_trainable_variables")


def set_flags(work: Work) -> None:
    """Sets flags and lists of every variable that the plan touches."""
    for index, merge in work.merges.items():
        variable = work.trace.variables[index]
        trains = merge.base_trains
        graph = work.meta.object_graph_def
        for node_id in (variable.node_id, *variable.copies):
            if node_id is None:
                continue
            if trains and merge.plan.enabled:
                graph.nodes[node_id].variable.trainable = True
            elif not trains:
                graph.nodes[node_id].variable.trainable = False
        _change_lists(work, index, variable, merge)


def _change_lists(work: Work, index: int, variable: Variable, merge: Merge) -> None:
    stored = [s for (i, _), s in work.stored.items() if i == index]
    parts = [s for s in stored if s.new.trainable]
    if variable.node_id is None:
        return
    if not merge.base_trains:
        position = _replace(work, "trainable_variables", variable.node_id, [s.node_id for s in parts])
        if position is not None:
            note = {"list": "trainable_variables", "position": position, "variable": variable.path}
            work.lists.append({**note, "parts": len(parts)})
            if _append(work, "non_trainable_variables", variable.node_id):
                work.lists.append({"list": "non_trainable_variables", "variable": variable.path, "position": None})
    for new in stored:
        if _list(work, "variables") is not None and _holds(work, "variables", variable.node_id):
            _append(work, "variables", new.node_id)
            if not new.new.trainable:
                _append(work, "non_trainable_variables", new.node_id)
    _keep_reachable(work, variable)


def _list(work: Work, name: str) -> int | None:
    node_id = children(work.meta.object_graph_def, 0).get(name)
    if node_id is None:
        return None
    node = work.meta.object_graph_def.nodes[node_id]
    is_list = all(c.local_name.isdigit() for c in node.children)
    return node_id if node.WhichOneof("kind") == "user_object" and is_list else None


def _holds(work: Work, name: str, node_id: int) -> bool:
    found = _list(work, name)
    return found is not None and any(c.node_id == node_id for c in work.meta.object_graph_def.nodes[found].children)


def _replace(work: Work, name: str, old: int, new: list[int]) -> int | None:
    """Puts nodes in the place of one, in both object graphs; returns that place, None where it was not in the list."""
    found = _list(work, name)
    if found is None:
        return None
    entries = [c.node_id for c in work.meta.object_graph_def.nodes[found].children]
    if old not in entries:
        return None
    place = entries.index(old)
    _set_entries(work, found, [*entries[:place], *new, *entries[place + 1 :]])
    return place


def _append(work: Work, name: str, node_id: int) -> bool:
    """Adds a node to a list; False where there is no such list, or the node is in it."""
    found = _list(work, name)
    if found is None:
        return False
    entries = [c.node_id for c in work.meta.object_graph_def.nodes[found].children]
    if node_id in entries:
        return False
    _set_entries(work, found, [*entries, node_id])
    return True


def _set_entries(work: Work, found: int, entries: list[int]) -> None:
    graph, bundle_graph = work.meta.object_graph_def, work.bundle_graph
    matched = {} if bundle_graph is None else match_nodes(graph, bundle_graph)
    del graph.nodes[found].children[:]
    for i, node_id in enumerate(entries):
        graph.nodes[found].children.add(node_id=node_id, local_name=str(i))
    if bundle_graph is not None and found in matched:
        node = bundle_graph.nodes[matched[found]]
        del node.children[:]
        for i, node_id in enumerate(entries):
            if node_id in matched:
                node.children.add(node_id=matched[node_id], local_name=str(i))


def _keep_reachable(work: Work, variable: Variable) -> None:
    graph, bundle_graph = work.meta.object_graph_def, work.bundle_graph
    if variable.node_id is None or variable.node_id in object_paths(graph):
        return
    matched = bundle_id_by_key(work, variable)
    for proto, node_id in ((graph, variable.node_id), (bundle_graph, matched)):
        if proto is None or node_id is None:
            continue
        child = children(proto, 0).get(CHILD)
        if child is None:
            child, node = append_node(proto, 0, CHILD)
            if proto is graph:
                node.user_object.identifier = "_generic_user_object"
        held = children(proto, child).get("held")
        if held is None:
            held, node = append_node(proto, child, "held")
            if proto is graph:
                node.user_object.identifier = "trackable_list_wrapper"
        count = len(proto.nodes[held].children)
        proto.nodes[held].children.add(node_id=node_id, local_name=str(count))


def bundle_id_by_key(work: Work, variable: Variable) -> int | None:
    """The variable's node in the checkpoint's object graph."""
    if work.bundle_graph is None:
        return None
    for i, node in enumerate(work.bundle_graph.nodes):
        if any(a.checkpoint_key == variable.key for a in node.attributes):
            return i
    return None


def trainable_nodes(work: Work) -> list[int]:
    """Object-graph nodes of what trains now: the order of the source, a part in its variable's place."""
    found: list[int] = []
    for variable in work.trace.variables:
        merge = work.merges.get(variable.index)
        parts: list[Stored] = [s for (i, _), s in work.stored.items() if i == variable.index and s.new.trainable]
        enabled = work.plan.variables[variable.index].enabled
        if merge is not None and merge.plan.strategy in (Strategy.STOP, Strategy.SPLIT):
            found.extend(s.node_id for s in parts)
        elif variable.node_id is not None and (enabled or work.trace.kind(variable) == "weight"):
            found.append(variable.node_id)
    return found
