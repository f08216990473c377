"""A checkpoint's object graph being changed, with the tensors that its nodes hold.

Restoring follows child names from the root, and takes whatever key a node names. So nodes are hung elsewhere and get
other contents here; at the end nodes that nothing leads to are gone, and every value has the key that TensorFlow would
give it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from graphfreeze.savedmodel import (
    VARIABLE_VALUE,
    Array,
    Bundle,
    Put,
    StoredTensor,
    StreamedTensor,
    recompute_keys,
    refresh_checkpoint_values,
)
from graphfreeze.savedmodel.protos import Message, TrackableObjectGraph


@dataclass(slots=True)
class CheckpointGraph:
    """``graph`` is changed in place; ``content`` holds what nodes get instead of what the checkpoint has."""

    bundle: Bundle
    graph: Message
    content: dict[int, Put] = field(default_factory=dict)

    def key(self, node: int) -> str | None:
        """The key of a node's value in the checkpoint, None where it has none there."""
        for attribute in self.graph.nodes[node].attributes:
            if attribute.name == VARIABLE_VALUE and attribute.checkpoint_key in self.bundle.entries:
                return str(attribute.checkpoint_key)
        return None

    def full_name(self, node: int) -> str:
        """The name of the variable that a node stands for."""
        found = (a.full_name for a in self.graph.nodes[node].attributes if a.name == VARIABLE_VALUE)
        return str(next(found, ""))

    def children(self, node: int) -> dict[str, int]:
        """Child name -> node."""
        return {c.local_name: c.node_id for c in self.graph.nodes[node].children}

    def entries(self, node: int) -> dict[int, int]:
        """Index -> node, of a list."""
        return {int(c.local_name): c.node_id for c in self.graph.nodes[node].children if c.local_name.isdigit()}

    def is_list(self, node: int) -> bool:
        """Whether a node has children, all of them numbered."""
        names = [c.local_name for c in self.graph.nodes[node].children]
        return bool(names) and all(name.isdigit() for name in names)

    def set_children(self, node: int, named: Iterable[tuple[str, int]]) -> None:
        """Replaces all children."""
        del self.graph.nodes[node].children[:]
        for name, number in named:
            self.graph.nodes[node].children.add(local_name=name, node_id=number)

    def add_node(self) -> int:
        """A node without a value, which nothing leads to yet."""
        self.graph.nodes.add()
        return len(self.graph.nodes) - 1

    def add_variable(self, name: str, content: Put) -> int:
        """A node with a value, which nothing leads to yet."""
        number = self.add_node()
        # Its key is made at the end, from its path.
        attribute = f"graphfreeze {number}"
        self.graph.nodes[number].attributes.add(name=VARIABLE_VALUE, full_name=name, checkpoint_key=attribute)
        self.content[number] = content
        return number

    def rename(self, node: int, old: str, new: str) -> None:
        """Puts another variable's name into the name of a slot."""
        for attribute in self.graph.nodes[node].attributes:
            attribute.full_name = renamed(attribute.full_name, old, new)

    def finish(self) -> tuple[dict[str, Put], set[str]]:
        """Tensors to put, and keys to drop; the graph is complete then."""
        before = {a.checkpoint_key for node in self.graph.nodes for a in node.attributes}
        self.graph, moved = _pruned(self.graph)
        self.content = {moved[n]: value for n, value in self.content.items() if n in moved}
        old = {number: [a.checkpoint_key for a in node.attributes] for number, node in enumerate(self.graph.nodes)}
        recompute_keys(self.graph)
        refresh_checkpoint_values(self.graph)
        put: dict[str, Put] = {}
        kept: set[str] = set()
        for number, node in enumerate(self.graph.nodes):
            for attribute, key in zip(node.attributes, old[number], strict=True):
                kept.add(attribute.checkpoint_key)
                if attribute.name == VARIABLE_VALUE and number in self.content:
                    put[attribute.checkpoint_key] = self.content[number]
                elif attribute.checkpoint_key != key and key in self.bundle.entries:
                    put[attribute.checkpoint_key] = StoredTensor(key)
        return put, (before - kept) & self.bundle.entries.keys()


def renamed(slot: str, old: str, new: str) -> str:
    """A slot's name with another variable's name in it; optimizers write "/" as it is or as "_"."""
    for form in (str, _underscored):
        head, found, tail = slot.rpartition(form(old))
        if found:
            return f"{head}{form(new)}{tail}"
    return slot


def _underscored(name: str) -> str:
    return name.replace("/", "_")


def streamed(data_type: int, shape: tuple[int, ...], make: Callable[[], Array]) -> StreamedTensor:
    """A tensor that is made when it is written, so that one lies in memory at a time."""
    return StreamedTensor(data_type, shape, lambda: [make()])


def _pruned(graph: Message) -> tuple[Message, dict[int, int]]:
    """The graph without what neither children nor slots lead to, numbered breadth first; and old -> new number."""
    order: dict[int, None] = {}
    pending = deque([0])
    while pending:
        number = pending.popleft()
        if number not in order:
            order[number] = None
            pending.extend(c.node_id for c in graph.nodes[number].children)
    reached = list(order)
    for number in reached:
        for slot in graph.nodes[number].slot_variables:
            if slot.original_variable_node_id in order:
                order[slot.slot_variable_node_id] = None
    moved = {old: new for new, old in enumerate(order)}
    result = TrackableObjectGraph()
    for number in order:
        node = result.nodes.add()
        node.CopyFrom(graph.nodes[number])
        for child in node.children:
            child.node_id = moved[child.node_id]
        slots = [s for s in graph.nodes[number].slot_variables if s.original_variable_node_id in moved]
        del node.slot_variables[:]
        for slot in slots:
            node.slot_variables.add(
                slot_name=slot.slot_name,
                original_variable_node_id=moved[slot.original_variable_node_id],
                slot_variable_node_id=moved[slot.slot_variable_node_id],
            )
    return result, moved
