"""The two object graphs of a TF2 SavedModel: what lies in them, by path, and the checkpoint keys they imply.

``SavedObjectGraph`` (in the .pb) holds all objects, functions and constants too; ``TrackableObjectGraph`` (a string
tensor in the checkpoint) holds those with values, and the key of each value. Loaders match the two by child names from
the root, never by node number. Both may have cycles and share nodes.

A checkpoint key is the shortest path from the root, found breadth first in the order of the children, with "." and
"/" in names escaped; a slot variable's key is made of its variable's and its optimizer's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import DecodeError

from graphfreeze.errors import InputOutputError, InternalError
from graphfreeze.savedmodel.bundle import Array, Bundle
from graphfreeze.savedmodel.protos import Message, TrackableObjectGraph

OBJECT_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
VARIABLE_VALUE = "VARIABLE_VALUE"

_ATTRIBUTES = "/.ATTRIBUTES/"
_SLOT = "/.OPTIMIZER_SLOT/"

NodePath = tuple[str, ...]
"""Child names from the root to a node, as the user wrote them."""


@dataclass(frozen=True, slots=True)
class SlotVariable:
    """A variable that an optimizer keeps for another variable; the numbers are node ids of one graph."""

    optimizer: int
    slot_name: str
    variable: int
    slot: int


def escape_name(name: str) -> str:
    """A child's name as it stands in a checkpoint key."""
    return name.replace(".", "..").replace("/", ".S")


def checkpoint_path(path: NodePath) -> str:
    """The part of a checkpoint key that names the object."""
    return "/".join(map(escape_name, path))


def checkpoint_key(path: NodePath, attribute: str = VARIABLE_VALUE) -> str:
    """The key under which TensorFlow saves a value of the object at ``path``."""
    return f"{checkpoint_path(path)}{_ATTRIBUTES}{escape_name(attribute)}"


def slot_key(variable: NodePath, optimizer: NodePath, slot_name: str) -> str:
    """The key under which TensorFlow saves a slot variable."""
    object_path = f"{checkpoint_path(variable)}{_SLOT}{checkpoint_path(optimizer)}/{escape_name(slot_name)}"
    return f"{object_path}{_ATTRIBUTES}{VARIABLE_VALUE}"


def check_graph(graph: Message, what: str = "object graph") -> None:
    """Raises when a child or slot names a node that is not there."""
    count = len(graph.nodes)
    for number, node in enumerate(graph.nodes):
        for child in node.children:
            if not 0 <= child.node_id < count:
                raise _no_node(what, f"child '{child.local_name}'", number, child.node_id, count)
        for slot in node.slot_variables:
            if not 0 <= (target := slot.original_variable_node_id) < count:
                raise _no_node(what, f"variable of slot '{slot.slot_name}'", number, target, count)
            if not 0 <= (target := slot.slot_variable_node_id) < count:
                raise _no_node(what, f"slot '{slot.slot_name}'", number, target, count)


def _no_node(what: str, name: str, number: int, target: int, count: int) -> InputOutputError:
    return InputOutputError(
        f"the {what} is damaged: the {name} of node {number} is node {target}, but there are {count} nodes"
    )


def node_paths(graph: Message) -> dict[int, NodePath]:
    """Shortest path to every node that children lead to, in breadth-first order. Works on either graph."""
    check_graph(graph)
    if not graph.nodes:
        return {}
    paths: dict[int, NodePath] = {0: ()}
    queue = deque([0])
    while queue:
        number = queue.popleft()
        for child in graph.nodes[number].children:
            if child.node_id not in paths:
                paths[child.node_id] = (*paths[number], child.local_name)
                queue.append(child.node_id)
    return paths


def object_paths(graph: Message) -> dict[int, str]:
    """The paths as people write them, joined with "/"; the root is ""."""
    return {number: "/".join(path) for number, path in node_paths(graph).items()}


def children(graph: Message, number: int) -> dict[str, int]:
    """Child name -> node id."""
    return {child.local_name: child.node_id for child in graph.nodes[number].children}


def node_at(graph: Message, path: NodePath) -> int | None:
    """The node that a path of child names leads to."""
    number = 0
    for name in path:
        found = children(graph, number).get(name)
        if found is None or not 0 <= found < len(graph.nodes):
            return None
        number = found
    return number if graph.nodes else None


def variable_nodes(graph: Message) -> dict[int, Message]:
    """SavedVariable of each variable node of a SavedObjectGraph, slot variables too, in node order."""
    return {number: node.variable for number, node in enumerate(graph.nodes) if node.WhichOneof("kind") == "variable"}


def slot_variables(graph: Message) -> list[SlotVariable]:
    """Slot variables of all optimizers, in either graph."""
    check_graph(graph)
    return [
        SlotVariable(number, slot.slot_name, slot.original_variable_node_id, slot.slot_variable_node_id)
        for number, node in enumerate(graph.nodes)
        for slot in node.slot_variables
    ]


def read_trackable_graph(bundle: Bundle | None) -> Message | None:
    """The TrackableObjectGraph of a checkpoint; None when it has none (TF1)."""
    if bundle is None or OBJECT_GRAPH_KEY not in bundle.entries:
        return None
    values = bundle.read_tensor(OBJECT_GRAPH_KEY).reshape(-1).tolist()
    if len(values) != 1 or not isinstance(values[0], bytes):
        raise bundle.fail(f"'{OBJECT_GRAPH_KEY}' should be one string")
    try:
        graph = TrackableObjectGraph.FromString(values[0])
    except DecodeError as error:
        raise bundle.fail(f"the object graph under '{OBJECT_GRAPH_KEY}' cannot be parsed") from error
    check_graph(graph, "object graph in the checkpoint")
    return graph


def trackable_graph_tensor(graph: Message) -> Array:
    """The string tensor to ``put`` under ``OBJECT_GRAPH_KEY``."""
    return np.array(graph.SerializeToString(deterministic=True), object)


def match_nodes(saved_graph: Message, trackable_graph: Message) -> dict[int, int]:
    """Saved node id -> trackable node id, by child names from the roots, then through slot variables."""
    check_graph(saved_graph)
    check_graph(trackable_graph, "object graph in the checkpoint")
    if not saved_graph.nodes or not trackable_graph.nodes:
        return {}
    matched = match_children(saved_graph, trackable_graph, 0)
    by_place = {(s.optimizer, s.slot_name, s.variable): s.slot for s in slot_variables(trackable_graph)}
    for slot in slot_variables(saved_graph):
        place = (matched.get(slot.optimizer, -1), slot.slot_name, matched.get(slot.variable, -1))
        if place in by_place:
            matched.setdefault(slot.slot, by_place[place])
    return matched


def match_children(graph: Message, other: Message, root: int) -> dict[int, int]:
    """Node id -> node id in another graph whose node ``root`` stands for the root, by child names alone."""
    matched = {0: root}
    queue = deque([0])
    while queue:
        number = queue.popleft()
        others = children(other, matched[number])
        for child in graph.nodes[number].children:
            if child.local_name in others and child.node_id not in matched:
                matched[child.node_id] = others[child.local_name]
                queue.append(child.node_id)
    return matched


def variable_keys(saved_graph: Message, trackable_graph: Message) -> dict[int, str]:
    """Checkpoint key of each variable node of the saved graph.

    A variable that had no value when the model was saved has a key too, but the bundle has no tensor under it.
    """
    variables = variable_nodes(saved_graph)
    keys = {}
    for number, other in sorted(match_nodes(saved_graph, trackable_graph).items()):
        for attribute in trackable_graph.nodes[other].attributes:
            if attribute.name == VARIABLE_VALUE and number in variables:
                keys[number] = attribute.checkpoint_key
    return keys


def recompute_keys(trackable_graph: Message) -> dict[str, str]:
    """Gives every value the key TensorFlow would save it under; returns old key -> new key for all that changed.

    Other attributes than a variable's value keep what stands after ``/.ATTRIBUTES/``.
    """
    names = dict(_object_names(trackable_graph))
    changed = {}
    for number, name in names.items():
        for attribute in trackable_graph.nodes[number].attributes:
            old = attribute.checkpoint_key
            suffix = old.partition(_ATTRIBUTES)[2] if _ATTRIBUTES in old else escape_name(attribute.name)
            attribute.checkpoint_key = f"{name}{_ATTRIBUTES}{suffix}"
            if attribute.checkpoint_key != old:
                changed[old] = attribute.checkpoint_key
    return changed


def append_node(graph: Message, parent: int, name: str) -> tuple[int, Message]:
    """Appends an empty node as child ``name`` of ``parent``; returns its id and the node. Works on either graph."""
    number = len(graph.nodes)
    node = graph.nodes.add()
    add_child(graph, parent, name, number)
    return number, node


def add_child(graph: Message, parent: int, name: str, number: int) -> None:
    """Appends a child reference; last, so that breadth-first paths of other nodes stay as they are."""
    if name in children(graph, parent):
        raise InternalError(f"node {parent} has a child '{name}' already")
    graph.nodes[parent].children.add(node_id=number, local_name=name)


def add_variable_value(node: Message, key: str, full_name: str) -> None:
    """Says that a node of a TrackableObjectGraph has its value under ``key``; ``full_name`` is the variable's name."""
    node.attributes.add(name=VARIABLE_VALUE, full_name=full_name, checkpoint_key=key)
    node.has_checkpoint_values.value = True


def refresh_checkpoint_values(trackable_graph: Message) -> None:
    """Sets, as TensorFlow does on saving, which nodes have a value or lead to one that has."""
    parents: dict[int, list[int]] = {}
    todo = []
    for number, node in enumerate(trackable_graph.nodes):
        for child in node.children:
            parents.setdefault(child.node_id, []).append(number)
        if node.attributes or node.slot_variables or node.HasField("registered_saver"):
            todo.append(number)
    with_values = set(todo)
    while todo:
        above = [number for number in parents.get(todo.pop(), []) if number not in with_values]
        with_values.update(above)
        todo += above
    for number, node in enumerate(trackable_graph.nodes):
        node.has_checkpoint_values.value = number in with_values


def _object_names(graph: Message) -> Iterator[tuple[int, str]]:
    paths: Mapping[int, NodePath] = node_paths(graph)
    for number, path in paths.items():
        yield number, checkpoint_path(path)
    for slot in slot_variables(graph):
        # Slots of objects that nothing leads to would not be saved; they keep their keys.
        if slot.variable in paths and slot.optimizer in paths and slot.slot not in paths:
            variable, optimizer = checkpoint_path(paths[slot.variable]), checkpoint_path(paths[slot.optimizer])
            yield slot.slot, f"{variable}{_SLOT}{optimizer}/{escape_name(slot.slot_name)}"
