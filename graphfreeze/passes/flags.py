"""Pass ``flags``: makes every record of what trains tell the truth.

The flag of a SavedVariable is what ``tf.saved_model.load`` and TFSMLayer go by; the root's lists
(``trainable_variables``, ``variables``, ...) are what hub.KerasLayer and Keras's own code go by. A new part takes the
place of its variable in the first list and every new variable joins the second. Where a list leaves a variable out that
nothing else in the object graph holds, ``graphfreeze/held`` keeps it, or it could not be saved again.
"""

from __future__ import annotations

from graphfreeze.graph.variables import Variable, is_float
from graphfreeze.passes.state import Work
from graphfreeze.passes.variables import hold_under
from graphfreeze.savedmodel import children, match_nodes, object_paths
from graphfreeze.selection import Strategy

_TRAINABLE, _ALL, _OTHERS = "trainable_variables", "variables", "non_trainable_variables"


def set_flags(work: Work) -> None:
    """Sets flags and lists of every variable that the plan touches."""
    lists = _Lists(work)
    graph = work.meta.object_graph_def
    touched: list[int] = []
    for variable, planned in zip(work.trace.variables, work.plan.variables, strict=True):
        merge = work.merges.get(variable.index)
        if variable.node_id is None or (merge is None and not planned.enabled):
            continue
        touched.append(variable.node_id)
        trains = merge is None or merge.base_trains or not is_float(variable.dtype)
        if planned.enabled or not trains:
            for node_id in (variable.node_id, *variable.copies):
                graph.nodes[node_id].variable.trainable = trains
        stored = [s for (i, _), s in work.stored.items() if i == variable.index]
        parts = [s.node_id for s in stored if s.new.trainable]
        if not trains:
            _turn_off(work, lists, variable, variable.node_id, parts)
        if planned.enabled:
            _turn_on(work, lists, variable, variable.node_id, [variable.node_id] if trains else parts)
        for new in stored if variable.node_id in lists.entries(_ALL) else ():
            lists.append(_ALL, new.node_id)
            if not new.new.trainable:
                lists.append(_OTHERS, new.node_id)
    lists.keep_reachable(touched)


def _turn_off(work: Work, lists: _Lists, variable: Variable, node_id: int, parts: list[int]) -> None:
    place = lists.replace(_TRAINABLE, node_id, parts)
    if place is not None:
        work.lists.append({"list": _TRAINABLE, "position": place, "variable": variable.path, "parts": len(parts)})
        if lists.append(_OTHERS, node_id):
            work.lists.append({"list": _OTHERS, "variable": variable.path, "position": None})


def _turn_on(work: Work, lists: _Lists, variable: Variable, node_id: int, trainable: list[int]) -> None:
    """The source left it out of what trains; what of it trains now joins the end of that list."""
    if node_id not in lists.entries(_ALL):
        return
    for added in trainable:
        if lists.append(_TRAINABLE, added) and added == node_id:
            work.lists.append({"list": _TRAINABLE, "variable": variable.path, "position": None})
    if node_id in trainable and (place := lists.replace(_OTHERS, node_id, [])) is not None:
        work.lists.append({"list": _OTHERS, "variable": variable.path, "position": place, "parts": 0})


class _Lists:
    """The root's lists of variables, changed in both object graphs alike."""

    def __init__(self, work: Work) -> None:
        self.graph, self.bundle_graph = work.meta.object_graph_def, work.bundle_graph
        # Taken before anything changes: a variable that leaves its only list could not be matched after that.
        self.matched = {} if self.bundle_graph is None else match_nodes(self.graph, self.bundle_graph)

    def find(self, name: str) -> int | None:
        """The list of that name, if the root has one."""
        node_id = children(self.graph, 0).get(name)
        if node_id is None:
            return None
        node = self.graph.nodes[node_id]
        is_list = all(c.local_name.isdigit() for c in node.children)
        return node_id if node.WhichOneof("kind") == "user_object" and is_list else None

    def entries(self, name: str) -> list[int]:
        """The nodes in a list; none where the root has no such list."""
        found = self.find(name)
        return [] if found is None else [c.node_id for c in self.graph.nodes[found].children]

    def replace(self, name: str, old: int, new: list[int]) -> int | None:
        """Puts nodes in the place of one; returns that place, None where it was not in the list."""
        entries = self.entries(name)
        if old not in entries:
            return None
        place = entries.index(old)
        self._set(name, [*entries[:place], *new, *entries[place + 1 :]])
        return place

    def append(self, name: str, node_id: int) -> bool:
        """Adds a node to a list; False where there is no such list, or the node is in it."""
        entries = self.entries(name)
        if self.find(name) is None or node_id in entries:
            return False
        self._set(name, [*entries, node_id])
        return True

    def _set(self, name: str, entries: list[int]) -> None:
        found = self.find(name)
        assert found is not None
        del self.graph.nodes[found].children[:]
        for i, node_id in enumerate(entries):
            self.graph.nodes[found].children.add(node_id=node_id, local_name=str(i))
        if self.bundle_graph is not None and found in self.matched:
            node = self.bundle_graph.nodes[self.matched[found]]
            del node.children[:]
            for i, node_id in enumerate(entries):
                if node_id in self.matched:
                    node.children.add(node_id=self.matched[node_id], local_name=str(i))

    def keep_reachable(self, variables: list[int]) -> None:
        """Holds variables under ``graphfreeze/held`` that nothing else in one of the graphs holds any more."""
        found = object_paths(self.graph)
        found_in_bundle = {} if self.bundle_graph is None else object_paths(self.bundle_graph)
        for node_id in variables:
            number = self.matched.get(node_id)
            if node_id in found and (number is None or number in found_in_bundle):
                continue
            held = hold_under(self.graph, "held")
            name = str(len(self.graph.nodes[held].children))
            self.graph.nodes[held].children.add(node_id=node_id, local_name=name)
            if number is not None and self.bundle_graph is not None:
                held = hold_under(self.bundle_graph, "held")
                self.bundle_graph.nodes[held].children.add(node_id=number, local_name=name)


def trainable_nodes(work: Work) -> list[int]:
    """Object-graph nodes of what trains in the phase at work: the order of the source, parts in a variable's place."""
    found: list[int] = []
    for variable in work.trace.variables:
        merge = work.merges.get(variable.index)
        enabled = work.plan.variables[variable.index].enabled
        if merge is not None and merge.plan.strategy in (Strategy.STOP, Strategy.SPLIT):
            roles = [o.role for o in merge.overlays if o.is_part and o.trainable]
            found.extend(work.stored[variable.index, role].node_id for role in roles if role is not None)
        elif variable.node_id is not None and (enabled or work.trace.kind(variable) == "weight"):
            found.append(variable.node_id)
    return found
