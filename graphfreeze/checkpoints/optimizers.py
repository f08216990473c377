"""Optimizers in an object-based checkpoint: those with lists (Keras 3, tf_keras) and those with slots (TF1, legacy).

A list holds one slot for each variable that trains, by position, and is a child of the optimizer beside ``_variables``,
which holds all that the optimizer owns in the order in which it made it. Which variable has which position is said by
``_trainable_variables`` (Keras 3) or by the slots' names (tf_keras). After a conversion the positions are those of
``graphfreeze.trainable_variables``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from graphfreeze.checkpoints.graph import CheckpointGraph, renamed, streamed
from graphfreeze.checkpoints.slots import Slot, into_original, into_rewritten, new_slot
from graphfreeze.checkpoints.task import Task, Trained
from graphfreeze.errors import UnsupportedModelError
from graphfreeze.savedmodel import DTYPE_NUMBERS, object_paths

_ALL, _TRAINS, _ITERATIONS = "_variables", "_trainable_variables", "_iterations"


def convert_optimizers(
    task: Task, checkpoint: CheckpointGraph, trained: Sequence[Trained], inside: Collection[int]
) -> set[int]:
    """Changes every optimizer of ``checkpoint`` in place; returns which variables they train, by order.

    ``inside`` are the nodes of the model: an optimizer that was saved with it is the same in both layouts.
    """
    paths = object_paths(checkpoint.graph)
    outside = [n for n in range(len(checkpoint.graph.nodes)) if n not in inside]
    found = [_Lists(task, checkpoint, trained, n, paths.get(n, "")) for n in outside]
    lists = [o for o in found if o.lists or o.trains is not None]
    places = [o.positions() for o in lists]
    # One that wraps another (LossScaleOptimizer) lists variables and holds no slots.
    several = sum(bool(p and o.lists) for o, p in zip(lists, places, strict=True)) > 1
    for optimizer, positions in zip(lists, places, strict=True):
        if positions:
            optimizer.convert(positions, several)
    known = {t.variable.order for positions in places for t in positions.values()}
    return known | _convert_slots(task, checkpoint, trained, outside)


@dataclass(frozen=True, slots=True)
class _Order:
    """Positions before, in their new order; a variable that is new stands for itself."""

    entries: tuple[int | Trained, ...]

    def is_as_before(self, count: int) -> bool:
        return self.entries == tuple(range(count))


class _Lists:
    """One optimizer with lists."""

    def __init__(
        self, task: Task, checkpoint: CheckpointGraph, trained: Sequence[Trained], number: int, path: str
    ) -> None:
        self.task, self.checkpoint, self.trained, self.number, self.path = task, checkpoint, trained, number, path
        children = checkpoint.children(number)
        self.all = children.get(_ALL) if _ITERATIONS in children else None
        self.trains = children.get(_TRAINS) if self.all is not None else None
        others = set() if self.trains is None else set(checkpoint.entries(self.trains).values())
        # Not only what ``_variables`` holds: a conversion takes slots out of it.
        self.lists = {
            name: node
            for name, node in children.items()
            if self.all is not None and name not in (_ALL, _TRAINS) and self._holds_slots(node, others)
        }
        self.slots = {n for node in self.lists.values() for n in checkpoint.entries(node).values()}

    def _holds_slots(self, node: int, others: set[int]) -> bool:
        entries = self.checkpoint.entries(node).values() if self.checkpoint.is_list(node) else ()
        return bool(entries) and all(n not in others and self.checkpoint.full_name(n) for n in entries)

    def positions(self) -> dict[int, Trained]:
        """Which variable of the model has which position."""
        if self.trains is not None:
            by_node = {t.before: t for t in self.trained if t.before is not None}
            entries = self.checkpoint.entries(self.trains)
            return {i: by_node[n] for i, n in entries.items() if n in by_node}
        found: dict[int, Trained] = {}
        for node in self.lists.values():
            for index, slot in self.checkpoint.entries(node).items():
                owner = self._owner(self.checkpoint.full_name(slot))
                if owner is not None:
                    found.setdefault(index, owner)
        return found

    def _owner(self, slot_name: str) -> Trained | None:
        """The variable that a slot of tf_keras is called after: ``Adam/m/NAME``."""
        ends = [t for t in self.trained if t.name_before and slot_name.endswith(f"/{t.name_before}")]
        longest = max((len(t.name_before or "") for t in ends), default=0)
        ends = [t for t in ends if len(t.name_before or "") == longest]
        if len(ends) > 1 and any(t.variable.frozen is not None for t in ends):
            raise UnsupportedModelError(
                f"{len(ends)} variables are called '{ends[0].name_before}', and the optimizer at '{self.path}' does "
                "not say which of them a slot belongs to. Leave the optimizer out of the checkpoint and start it afresh"
            )
        return ends[0] if ends else None

    def convert(self, positions: Mapping[int, Trained], several: bool) -> None:
        count = 1 + max((i for n in self._indexed() for i in self.checkpoint.entries(n)), default=-1)
        self._check_known(positions)
        order = self._order(positions, count, several)
        for name, node in self.lists.items():
            self._convert_list(name, node, positions, order)
        if self.trains is not None:
            entries = self.checkpoint.entries(self.trains)
            after = [entries.get(e) if isinstance(e, int) else e.after for e in order.entries]
            instead = {t.before: t.after for t in positions.values() if t.after is not None}
            named = [(str(i), instead.get(n, n)) for i, n in enumerate(after) if n is not None]
            self.checkpoint.set_children(self.trains, [(i, n) for i, n in named if n is not None])
        if not order.is_as_before(count):
            self._shorten()

    def _indexed(self) -> list[int]:
        return [*self.lists.values(), *([] if self.trains is None else [self.trains])]

    def _order(self, positions: Mapping[int, Trained], count: int, several: bool) -> _Order:
        kept: list[int | Trained] = []
        for index in range(count):
            owner = positions.get(index)
            if owner is None or owner.name_after is not None:
                kept.append(index)
            else:
                self.task.dropped.append(owner.variable.name)
        new = [t for t in self.trained if t.is_new]
        if several and new:
            names = ", ".join(f"'{t.variable.name}'" for t in new)
            self.task.warnings.append(
                f"the checkpoint has several optimizers, so it is not known which of them trains {names}; the "
                "optimizers do not hold them"
            )
        else:
            kept += new
            self.task.added += [t.variable.name for t in new]
        owners = [e if isinstance(e, Trained) else positions.get(e) for e in kept]
        ranked = sorted(
            (e for e, owner in zip(kept, owners, strict=True) if owner is not None),
            key=lambda e: (e if isinstance(e, Trained) else positions[e]).variable.order,
        )
        queue = iter(ranked)
        ordered = [next(queue) if owner is not None else e for e, owner in zip(kept, owners, strict=True)]
        left = [e for e in ordered if isinstance(e, int)]
        if left != sorted(left):
            self.task.warnings.append(
                f"the variables of the optimizer at '{self.path}' stood in another order than the model's; now give "
                "them to it in the order of graphfreeze.trainable_variables(loaded), or the model's own"
            )
        return _Order(tuple(ordered))

    def _convert_list(self, name: str, node: int, positions: Mapping[int, Trained], order: _Order) -> None:
        entries = self.checkpoint.entries(node)
        like = next(((i, positions[i]) for i in sorted(entries) if i in positions), None)
        # Before any slot changes, because a new one is made after one of these.
        model = None if like is None else self._model_slot(entries[like[0]], like[1], name)
        for index, slot in entries.items():
            owner = positions.get(index)
            if owner is not None and owner.name_after is not None:
                turn_slot(self.task, self.checkpoint, slot, owner, name)
        named: list[tuple[str, int]] = []
        for index, entry in enumerate(order.entries):
            if isinstance(entry, int):
                named += [(str(index), entries[entry])] if entry in entries else []
            elif model is not None:
                named.append((str(index), make_slot(self.task, self.checkpoint, model, entry)))
        self.checkpoint.set_children(node, named)

    def _model_slot(self, node: int, owner: Trained, kind: str) -> SlotName:
        return SlotName(kind, self.checkpoint.full_name(node), owner.name_before or "")

    def _check_known(self, positions: Mapping[int, Trained]) -> None:
        """Refuses slots that no list tells the variable of, where slots would have to be cut, moved or reset.

        Lists with gaps (Adafactor, Muon of Keras 3) are not in the checkpoint.
        """
        changing = next((t for t in positions.values() if t.name_before != t.name_after or t.variable.live), None)
        if changing is None or self.all is None:
            return
        known = self.slots | self._named()
        owned = self.checkpoint.entries(self.all).values()
        unknown = next((n for n in owned if n not in known and self.checkpoint.key(n) is not None), None)
        if unknown is not None:
            raise UnsupportedModelError(
                f"The optimizer at '{self.path}' holds '{self.checkpoint.full_name(unknown)}' without saying which "
                f"variable it belongs to, and '{changing.variable.name}' is stored otherwise after the conversion. "
                "Leave the optimizer out of the checkpoint and start it afresh, or rewrite the model with --strategy "
                "mask"
            )

    def _named(self) -> set[int]:
        """What is an attribute of the optimizer's own."""
        return {n for name, n in self.checkpoint.children(self.number).items() if name != _ALL}

    def _shorten(self) -> None:
        """Takes slots out of ``_variables``: their number there depends on the optimizer's code.

        They are restored through the lists, and what stands behind them through its own name (``_check_known`` has seen
        to that). What stands in front of the first slot keeps its number.
        """
        assert self.all is not None
        kept: list[tuple[str, int]] = []
        for index, node in sorted(self.checkpoint.entries(self.all).items()):
            if node in self.slots or index != len(kept):
                break
            kept.append((str(index), node))
        self.checkpoint.set_children(self.all, kept)


@dataclass(frozen=True, slots=True)
class SlotName:
    """What a slot is called: by the optimizer (``kind``), and as a variable, after the variable ``owner``."""

    kind: str
    full_name: str
    owner: str


def turn_slot(task: Task, checkpoint: CheckpointGraph, node: int, owner: Trained, kind: str) -> None:
    """Gives a slot the contents and the name that it has after the conversion."""
    key = checkpoint.key(node)
    if key is not None:
        shape = checkpoint.bundle.shape(key)
        place = f"'{checkpoint.full_name(node) or key}'"
        slot = Slot(owner.variable, kind, place, shape, lambda: checkpoint.bundle.read_tensor(key), owner.effective)
        turned = into_rewritten(slot) if task.into else into_original(slot)
        if turned is not None:
            task.slots += 1
            checkpoint.content[node] = streamed(checkpoint.bundle.data_type(key), *turned)
    if owner.name_before and owner.name_after:
        checkpoint.rename(node, owner.name_before, owner.name_after)


def make_slot(task: Task, checkpoint: CheckpointGraph, like: SlotName, owner: Trained) -> int:
    """A slot for a variable that did not train before, called as the slots of others are."""
    variable, part = owner.variable, owner.variable.part if task.into else None
    shape = variable.shape if part is None or part.region is None else part.region.storage_shape
    tensor = streamed(
        DTYPE_NUMBERS[variable.dtype],
        shape,
        lambda: new_slot(variable, like.kind, owner.effective, rewritten=task.into),
    )
    return checkpoint.add_variable(renamed(like.full_name, like.owner, owner.name_after or ""), tensor)


def _convert_slots(
    task: Task, checkpoint: CheckpointGraph, trained: Sequence[Trained], optimizers: Sequence[int]
) -> set[int]:
    """Slots that optimizers hold by variable and name."""
    by_node = {t.before: t for t in trained if t.before is not None}
    seen: set[int] = set()
    for number in optimizers:
        node = checkpoint.graph.nodes[number]
        if not node.slot_variables:
            continue
        entries = [(s.slot_name, s.original_variable_node_id, s.slot_variable_node_id) for s in node.slot_variables]
        kept: list[tuple[str, int, int]] = []
        models: dict[str, SlotName] = {}
        for name, variable, slot in entries:
            owner = by_node.get(variable)
            if owner is None:
                kept.append((name, variable, slot))
                continue
            seen.add(owner.variable.order)
            if owner.after is None:
                task.dropped.append(owner.variable.name)
            else:
                models.setdefault(name, SlotName(name, checkpoint.full_name(slot), owner.name_before or ""))
                turn_slot(task, checkpoint, slot, owner, name)
                kept.append((name, owner.after, slot))
        for owner in trained if models else ():
            if owner.is_new and owner.after is not None:
                kept += [(name, owner.after, make_slot(task, checkpoint, like, owner)) for name, like in models.items()]
                task.added.append(owner.variable.name)
        del node.slot_variables[:]
        for name, variable, slot in kept:
            node.slot_variables.add(slot_name=name, original_variable_node_id=variable, slot_variable_node_id=slot)
    return seen
