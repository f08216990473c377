"""Gives lists of variables back what they held: the root's, or those that another tool made of the model's variables.

Where ``info`` is still there its notes say which entry stood where. An export by Keras loses it and makes new lists, in
the order in which functions capture variables; there a variable goes in front of the first one that its functions
capture after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from graphfreeze.graph.uses import Trace
from graphfreeze.passes.found import Frozen, Holder, Marks
from graphfreeze.savedmodel import children
from graphfreeze.savedmodel.protos import Message

TRAINABLE, OTHERS, ALL = "trainable_variables", "non_trainable_variables", "variables"
_WRAPPERS = ("trackable_list_wrapper", "trackable_tuple_wrapper")


@dataclass(frozen=True, slots=True)
class Objects:
    """Both object graphs, and which node of the one is which of the other."""

    graph: Message
    bundle_graph: Message | None
    matched: Mapping[int, int]

    def is_list(self, number: int) -> bool:
        """Whether a node is a list or tuple of Python's."""
        node = self.graph.nodes[number]
        return node.WhichOneof("kind") == "user_object" and (
            node.user_object.identifier in _WRAPPERS or all(c.local_name.isdigit() for c in node.children)
        )

    def entries(self, number: int) -> list[int]:
        """The nodes in a list, in order."""
        found = [c for c in self.graph.nodes[number].children if c.local_name.isdigit()]
        return [c.node_id for c in sorted(found, key=lambda c: int(c.local_name))]

    def set_entries(self, number: int, entries: Sequence[int]) -> None:
        """Changes a list in both graphs; other children that it has stay."""
        graphs: list[tuple[Message, int | None, Mapping[int, int] | None]] = [(self.graph, number, None)]
        if self.bundle_graph is not None:
            graphs.append((self.bundle_graph, self.matched.get(number), self.matched))
        for proto, place, ids in graphs:
            if place is None:
                continue
            others = [c for c in proto.nodes[place].children if not c.local_name.isdigit()]
            kept = [type(c).FromString(c.SerializeToString()) for c in others]
            del proto.nodes[place].children[:]
            for i, node_id in enumerate(entries):
                target = node_id if ids is None else ids.get(node_id)
                if target is not None:
                    proto.nodes[place].children.add(node_id=target, local_name=str(i))
            proto.nodes[place].children.extend(kept)

    def repoint(self, number: int, name: str, target: int) -> None:
        """Lets a child be another object, in both graphs."""
        place = self.matched.get(number)
        graphs = [(self.graph, number, target)]
        if self.bundle_graph is not None and place is not None and target in self.matched:
            graphs.append((self.bundle_graph, place, self.matched[target]))
        for proto, parent, node_id in graphs:
            for child in proto.nodes[parent].children:
                if child.local_name == name:
                    child.node_id = node_id


def restore_lists(objects: Objects, trace: Trace, marks: Marks, ours: Collection[int]) -> None:
    """Restores every list that a rewrite changed, or that holds variables of ours.

    Where a user put a trainable part, the variable is what trains again.
    """
    for holder in marks.holders:
        _by_notes(objects, holder)
    for frozen in marks.frozen:
        if frozen.holder is None:
            _by_captures(objects, trace, frozen)
    instead = _whole_variables(trace, marks)
    for number, node in enumerate(objects.graph.nodes):
        if objects.is_list(number):
            entries = objects.entries(number)
            if any(n in ours for n in entries):
                wanted = (n if n not in ours else instead.get(n) for n in entries)
                objects.set_entries(number, list(dict.fromkeys(n for n in wanted if n is not None)))
            continue
        for child in node.children:
            objects.repoint(number, child.local_name, instead.get(child.node_id, child.node_id))


def _whole_variables(trace: Trace, marks: Marks) -> dict[int, int]:
    """Node of a trainable part -> node of the variable that it is a part of; second copies go with second copies."""
    found: dict[int, int] = {}
    for frozen in marks.frozen:
        base = trace.variables[frozen.variable]
        for role, storage in frozen.storages.items():
            part = trace.variables[storage]
            if role.startswith("part:") and base.node_id is not None and part.node_id is not None:
                found |= {part.node_id: base.node_id, **dict(zip(part.copies, base.copies, strict=False))}
    return found


def _by_notes(objects: Objects, holder: Holder) -> None:
    lists = children(objects.graph, holder.parent)
    for note in reversed(holder.info["lists"]):
        node_id = holder.place(objects.graph, note["variable"])
        found = lists.get(note["list"])
        if node_id is None or found is None:
            continue
        entries = objects.entries(found)
        if note["position"] is None:
            entries = [n for n in entries if n != node_id]
        elif node_id not in entries:
            place = note["position"]
            entries = [*entries[:place], node_id, *entries[place + note["parts"] :]]
        objects.set_entries(found, entries)


def _by_captures(objects: Objects, trace: Trace, frozen: Frozen) -> None:
    variable = trace.variables[frozen.variable]
    node_id = variable.node_id
    if node_id is None or not frozen.fact.trainable:
        return
    parts = {trace.variables[s].node_id for role, s in frozen.storages.items() if role.startswith("part:")}
    for parent in range(len(objects.graph.nodes)):
        lists = children(objects.graph, parent)
        if not {TRAINABLE, OTHERS} <= lists.keys() or not all(objects.is_list(lists[n]) for n in (TRAINABLE, OTHERS)):
            continue
        trains = objects.entries(lists[TRAINABLE])
        others = objects.entries(lists[OTHERS])
        if node_id not in others or (parts and not parts & set(trains)):
            continue  # the whole model was made untrainable
        later = _captured_after(objects.graph, node_id)
        objects.set_entries(lists[OTHERS], [n for n in others if n != node_id])
        objects.set_entries(lists[TRAINABLE], _inserted(trains, node_id, later, parts))
        if ALL in lists and objects.is_list(lists[ALL]):
            entries = [n for n in objects.entries(lists[ALL]) if n != node_id]
            objects.set_entries(lists[ALL], _inserted(entries, node_id, later, parts))


def _inserted(entries: Sequence[int], node_id: int, later: Collection[int], parts: Collection[int | None]) -> list[int]:
    """``entries`` with the node in front of the first of ``later``, else in a part's place, else at the end."""
    places = [i for i, n in enumerate(entries) if n in later] or [i for i, n in enumerate(entries) if n in parts]
    place = min(places, default=len(entries))
    return [*entries[:place], node_id, *entries[place:]]


def _captured_after(graph: Message, node_id: int) -> set[int]:
    """Nodes that some function captures behind this one, and none in front of it."""
    behind: set[int] = set()
    ahead: set[int] = set()
    for concrete in graph.concrete_functions.values():
        bound: Iterable[int] = list(concrete.bound_inputs)
        if node_id in bound:
            place = list(bound).index(node_id)
            ahead.update(list(bound)[:place])
            behind.update(list(bound)[place + 1 :])
    return behind - ahead
