"""Converts an object-based checkpoint, as ``tf.train.Checkpoint`` and ``save_weights`` of tf_keras write it.

The model's objects become those of the other layout: its lists of variables, and the child ``graphfreeze``. Optimizers
then let go of what trained before and hold what trains after. Where the checkpoint has no model but an optimizer of
Keras 3, which knows its variables, these are told by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from graphfreeze.checkpoints.graph import CheckpointGraph, streamed
from graphfreeze.checkpoints.layout import Layout, ModelVariable, Side, Storage
from graphfreeze.checkpoints.optimizers import convert_optimizers
from graphfreeze.checkpoints.place import find_model
from graphfreeze.checkpoints.task import Task, Trained
from graphfreeze.passes.variables import CHILD
from graphfreeze.savedmodel import DTYPE_NUMBERS, Array
from graphfreeze.savedmodel.protos import Message


def convert_objects(task: Task, checkpoint: CheckpointGraph, at: str | None) -> None:
    """Changes ``checkpoint`` in place; ``task`` collects what is to be said about it."""
    _Objects(task, checkpoint, at).convert()


class _Objects:
    def __init__(self, task: Task, checkpoint: CheckpointGraph, at: str | None) -> None:
        self.task, self.checkpoint = task, checkpoint
        self.layout: Layout = task.layout
        graph = self.layout.original if task.into else self.layout.rewritten
        shapes = {self._before(v).node: v.shape for v in self.layout.variables}
        self.found = find_model(checkpoint, graph, shapes, at)
        self.by_name = {} if self.found else self._named()
        moved = self.layout.moved
        self.earlier = moved if task.into else {new: old for old, new in moved.items()}

    def convert(self) -> None:
        in_place = {v.order: self._place(v) for v in self.layout.variables}
        self._check_layout()
        self._check_fits(in_place)
        names = self._names()
        added = self._add(in_place)
        trained = [t for v in self.layout.variables if (t := self._trained(v, in_place[v.order], added)) is not None]
        known = {v.order for v in self.layout.variables if in_place[v.order] is not None}
        known |= {t.variable.order for t in trained if t.before is not None}
        known |= convert_optimizers(self.task, self.checkpoint, trained, set(self.found.values()))
        self.task.check_found(known, names)
        if self.found:
            self._hang(added)

    def _check_layout(self) -> None:
        if self.found and self.layout.holders:
            self.task.check_layout(any(CHILD in self.checkpoint.children(n) for n in self._parents()))
        elif not self.found and self.by_name and any(self._storages()):
            self.task.check_layout(any(s.name in self.by_name for s in self._storages()))

    def _check_fits(self, in_place: dict[int, int | None]) -> None:
        bundle = self.checkpoint.bundle
        for variable in self.layout.variables:
            node = in_place[variable.order]
            key = None if node is None else self.checkpoint.key(node)
            if key is not None:
                self.task.check_fits(variable, bundle.shape(key), bundle.data_type(key))
            elif self.found and variable.frozen is not None:
                self.task.warnings.append(
                    f"the checkpoint holds no value of '{variable.name}'; the result holds the rewritten model's"
                )

    def _names(self) -> list[str]:
        return sorted({a.full_name or a.checkpoint_key for n in self.checkpoint.graph.nodes for a in n.attributes})

    def _parents(self) -> Iterator[int]:
        """Nodes of the checkpoint under which ``graphfreeze`` stands in the rewritten model."""
        for parent, node in enumerate(self.layout.rewritten.nodes):
            if any(c.local_name == CHILD and c.node_id in self.layout.holders for c in node.children):
                place = self.found.get(self.layout.moved.get(parent, -1) if self.task.into else parent)
                if place is not None:
                    yield place

    def _before(self, variable: ModelVariable) -> Side:
        return variable.original if self.task.into else variable.rewritten

    def _after(self, variable: ModelVariable) -> Side:
        return variable.rewritten if self.task.into else variable.original

    def _named(self) -> dict[str, int]:
        """Variables that an optimizer of Keras 3 lists, by name."""
        found: dict[str, int] = {}
        for node in self.checkpoint.graph.nodes:
            for child in node.children:
                if child.local_name == "_trainable_variables":
                    for number in self.checkpoint.entries(child.node_id).values():
                        found.setdefault(self.checkpoint.full_name(number), number)
        return found

    def _place(self, variable: ModelVariable) -> int | None:
        """The variable's node in the checkpoint, as it was before."""
        if self.found:
            return self.found.get(self._before(variable).node)
        return self.by_name.get(variable.name)

    def _storages(self) -> Iterator[Storage]:
        return (s for v in self.layout.variables for s in v.storages)

    def _place_of(self, storage: Storage) -> int | None:
        if self.task.into:
            return None
        return self.found.get(storage.node) if self.found else self.by_name.get(storage.name)

    def _add(self, in_place: dict[int, int | None]) -> dict[int, int]:
        """Gives nodes that stay their new contents, and makes new ones; node of the layout made -> of the checkpoint.

        Without the model an optimizer holds what trains, and nothing else is added.
        """
        added: dict[int, int] = {}
        for variable in self.layout.touched():
            node, after = in_place[variable.order], self._after(variable)
            value = self._value(variable, node)
            if self.task.into:
                self._compare(variable, node)
                if node is not None and (content := self.task.base_content(variable, value)) is not None:
                    self.checkpoint.content[node] = streamed(DTYPE_NUMBERS[variable.dtype], variable.shape, content)
                for storage in variable.storages:
                    added[storage.node] = self._add_storage(variable, storage, value)
            elif variable.held or node is None:
                content_of = streamed(DTYPE_NUMBERS[variable.dtype], variable.shape, value)
                if node is None:
                    added[after.node] = self.checkpoint.add_variable(variable.name, content_of)
                else:
                    self.checkpoint.content[node] = content_of
        return added

    def _add_storage(self, variable: ModelVariable, storage: Storage, value: Callable[[], Array]) -> int:
        bundle = self.layout.draft.model.bundle
        assert bundle is not None
        content = self.task.storage_content(variable, storage, value)
        tensor = streamed(bundle.data_type(storage.key), bundle.shape(storage.key), content)
        return self.checkpoint.add_variable(storage.name, tensor)

    def _value(self, variable: ModelVariable, node: int | None) -> Callable[[], Array]:
        """The effective value in the checkpoint; what it does not hold is taken from the rewritten model."""
        base = self._reader(node, variable.key)
        held = [(s.region, self._reader(self._place_of(s), s.key)) for s in variable.held]

        def make() -> Array:
            value = base()
            for region, read in () if self.task.into else held:
                assert region is not None
                value = region.put(value, read())
            return value

        return make

    def _reader(self, node: int | None, key: str) -> Callable[[], Array]:
        """Reads a node's value, or the rewritten model's; told now, because nodes get other numbers."""
        held = None if node is None else self.checkpoint.key(node)
        bundle = self.checkpoint.bundle
        return lambda: self.layout.stored(key) if held is None else bundle.read_tensor(held)

    def _compare(self, variable: ModelVariable, node: int | None) -> None:
        if node is not None and self.checkpoint.key(node) is not None:
            self.task.compare(variable, self._reader(node, variable.key)(), held=bool(self.found))

    def _trained(self, variable: ModelVariable, node: int | None, added: dict[int, int]) -> Trained | None:
        def place(side: Side, storages_are: Callable[[Storage], int | None]) -> int | None:
            if side.trained_node is None:
                return None
            if side.trained_node == side.node:
                return added.get(side.node, node) if side is self._after(variable) else node
            part = variable.part
            return None if part is None else storages_are(part)

        before = place(self._before(variable), self._place_of)
        after = place(self._after(variable), lambda s: added.get(s.node))
        effective = self._value(variable, node)
        if self._before(variable).trained_name is None and self._after(variable).trained_name is None:
            return None
        names = self._before(variable).trained_name, self._after(variable).trained_name
        return Trained(variable, *names, before, after, effective)

    # The model's own objects

    def _hang(self, added: dict[int, int]) -> None:
        """Gives the model's nodes the children that they have in the layout that is made."""
        before, after = self._graphs()
        places = self._places(added)
        for number, node in enumerate(after.nodes):
            old, here = self._earlier(number), places.get(number)
            if old is None or here is None:
                continue
            wanted = [(c.local_name, places[c.node_id]) for c in node.children if c.node_id in places]
            known = {c.local_name for c in before.nodes[old].children}
            had = {n: self.found[i] for n, i in _named_children(before, old) if i in self.found}
            if dict(wanted) == had:
                continue
            names = {c.local_name for c in node.children}
            others = [(n, i) for n, i in self.checkpoint.children(here).items() if n not in known | names]
            self.checkpoint.set_children(here, [*wanted, *others])

    def _graphs(self) -> tuple[Message, Message]:
        graphs = self.layout.original, self.layout.rewritten
        return graphs if self.task.into else (graphs[1], graphs[0])

    def _earlier(self, number: int) -> int | None:
        """The node of the layout before that a node of the layout made is."""
        return self.earlier.get(number)

    def _places(self, added: dict[int, int]) -> dict[int, int]:
        """Node of the layout made -> node of the checkpoint; what holds new variables gets nodes."""
        _, after = self._graphs()
        places = dict(added)
        for number in range(len(after.nodes)):
            old = self._earlier(number)
            if old is not None and old in self.found:
                places.setdefault(number, self.found[old])
        if self.task.into:
            # Also without new variables: it tells the two kinds of checkpoints apart.
            for holder in self.layout.holders:
                self._add_holder(holder, places)
        return places

    def _add_holder(self, holder: int, places: dict[int, int]) -> None:
        lists = [c for c in self.layout.rewritten.nodes[holder].children if c.local_name in ("variables", "held")]
        places[holder] = self.checkpoint.add_node()
        for found in lists:
            places[found.node_id] = self.checkpoint.add_node()
            entries = _named_children(self.layout.rewritten, found.node_id)
            self.checkpoint.set_children(places[found.node_id], [(n, places[i]) for n, i in entries if i in places])
        self.checkpoint.set_children(places[holder], [(c.local_name, places[c.node_id]) for c in lists])


def _named_children(graph: Message, number: int) -> list[tuple[str, int]]:
    return [(c.local_name, c.node_id) for c in graph.nodes[number].children]
