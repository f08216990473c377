"""Converts a name-based checkpoint, as ``tf.compat.v1.train.Saver`` writes it.

A variable's value stands under its name, and the slots of TF1 optimizers under ``NAME/Adam``, ``NAME/Adam_1``,
``NAME/Momentum``: the optimizer's name, counted. Everything else (``beta1_power``, ``global_step``) stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from graphfreeze.checkpoints.graph import streamed
from graphfreeze.checkpoints.layout import ModelVariable
from graphfreeze.checkpoints.slots import Slot, into_original, into_rewritten, new_slot
from graphfreeze.checkpoints.task import Task
from graphfreeze.errors import UnsupportedModelError
from graphfreeze.savedmodel import DTYPE_NUMBERS, Array, Bundle, Put, StoredTensor

_COUNTED = re.compile(r"_\d+\Z")


@dataclass(slots=True)
class NamedTensors:
    """What changes in a name-based checkpoint."""

    put: dict[str, Put] = field(default_factory=dict)
    drop: set[str] = field(default_factory=set)


def convert_names(task: Task, bundle: Bundle) -> NamedTensors:
    """The tensors to put and the keys to drop; ``task`` collects what is to be said about it."""
    return _Names(task, bundle).convert()


class _Names:
    def __init__(self, task: Task, bundle: Bundle) -> None:
        self.task, self.bundle = task, bundle
        self.variables = task.layout.variables
        self.result = NamedTensors()

    def convert(self) -> NamedTensors:
        stored = self.bundle.entries.keys()
        storages = [s.name for v in self.variables for s in v.storages]
        held = {v.order for v in self.variables if v.name in stored}
        self.task.check_found(held, sorted(stored))
        if storages:
            self.task.check_layout(any(name in stored for name in storages))
        self._check_names()
        for variable in self.variables:
            if variable.name in stored:
                shape, data_type = self.bundle.shape(variable.name), self.bundle.data_type(variable.name)
                self.task.check_fits(variable, shape, data_type)
        found = list(self._slots())
        for variable in self.task.layout.touched():
            self._convert_value(variable)
        for variable, key, kind in found:
            self._convert_slot(variable, key, kind)
        self._add_slots({kind for _, _, kind in found})
        return self.result

    def _check_names(self) -> None:
        names = [v.name for v in self.variables]
        twice = next((v.name for v in self.task.layout.touched() if names.count(v.name) > 1), None)
        if twice is not None:
            raise UnsupportedModelError(
                f"{names.count(twice)} variables of the model are called '{twice}', so a checkpoint by name does not "
                "say which of them a value belongs to. Give one that tf.train.Checkpoint wrote"
            )

    def _convert_value(self, variable: ModelVariable) -> None:
        value = self._value(variable)
        if not self.task.into:
            self.result.drop |= {s.name for s in variable.storages} & self.bundle.entries.keys()
            if variable.held:
                self._put(variable.name, DTYPE_NUMBERS[variable.dtype], variable.shape, value)
            return
        if variable.name in self.bundle.entries:
            self.task.compare(variable, self.bundle.read_tensor(variable.name), held=True)
        if (content := self.task.base_content(variable, value)) is not None:
            self._put(variable.name, DTYPE_NUMBERS[variable.dtype], variable.shape, content)
        model = self.task.layout.draft.model.bundle
        assert model is not None
        for storage in variable.storages:
            content = self.task.storage_content(variable, storage, value)
            self._put(storage.name, model.data_type(storage.key), model.shape(storage.key), content)

    def _value(self, variable: ModelVariable) -> Callable[[], Array]:
        """The effective value in the checkpoint; what it does not hold is taken from the rewritten model."""

        def make() -> Array:
            value = self._read(variable.name, variable.key)
            for storage in () if self.task.into else variable.held:
                assert storage.region is not None
                value = storage.region.put(value, self._read(storage.name, storage.key))
            return value

        return make

    def _read(self, name: str, key: str) -> Array:
        return self.bundle.read_tensor(name) if name in self.bundle.entries else self.task.layout.stored(key)

    def _put(self, name: str, data_type: int, shape: tuple[int, ...], make: Callable[[], Array]) -> None:
        self.result.put[name] = streamed(data_type, shape, make)

    # Slots

    def _slots(self) -> Iterator[tuple[ModelVariable, str, str]]:
        """(variable, key, last part of the key) of every slot."""
        sides = {self._trained(v, before=True): v for v in self.variables}
        known = {v.name for v in self.variables} | {s.name for v in self.variables for s in v.storages}
        for key in self.bundle.entries:
            name, _, kind = key.rpartition("/")
            if name in sides and name is not None and key not in known:
                yield sides[name], key, kind

    def _trained(self, variable: ModelVariable, *, before: bool) -> str | None:
        side = variable.original if self.task.into is before else variable.rewritten
        return side.trained_name

    def _convert_slot(self, variable: ModelVariable, key: str, kind: str) -> None:
        after = self._trained(variable, before=False)
        if after is None:
            self.result.drop.add(key)
            self.task.dropped.append(variable.name)
            return
        new_key = f"{after}/{kind}"
        place, shape = f"'{key}'", self.bundle.shape(key)
        plain = _COUNTED.sub("", kind) if kind.startswith("Exponential") else kind
        slot = Slot(variable, plain, place, shape, lambda: self.bundle.read_tensor(key), self._value(variable))
        turned = into_rewritten(slot) if self.task.into else into_original(slot)
        if turned is not None:
            self.task.slots += 1
            self._put(new_key, self.bundle.data_type(key), *turned)
        elif new_key != key:
            self.result.put[new_key] = StoredTensor(key)
        if new_key != key:
            self.result.drop.add(key)

    def _add_slots(self, kinds: set[str]) -> None:
        """Slots for what did not train before: each that the checkpoint has for others."""
        for variable in self.variables:
            before, after = self._trained(variable, before=True), self._trained(variable, before=False)
            if before is not None or after is None or not kinds:
                continue
            self.task.added.append(variable.name)
            part = variable.part if self.task.into else None
            shape = variable.shape if part is None or part.region is None else part.region.storage_shape
            for kind in sorted(kinds):
                self._put(f"{after}/{kind}", DTYPE_NUMBERS[variable.dtype], shape, self._maker(variable, kind))

    def _maker(self, variable: ModelVariable, kind: str) -> Callable[[], Array]:
        return lambda: new_slot(variable, kind, self._value(variable), rewritten=self.task.into)
