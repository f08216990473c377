"""Pass ``flags`` in a TF1 graph: what the collections say of variables.

``minimize(loss)`` trains what TRAINABLE_VARIABLES lists and a ``Saver`` holds what VARIABLES lists. A part takes its
variable's place in the first, and every new variable stands behind its variable in all others. What changes is noted
for ``finalize`` word for word, because a VariableDef of another version of TensorFlow has other fields.

A graph has one forward pass for all phases, and what trains is chosen by ``var_list``: collection ``graphfreeze/PHASE``
names the variables of a phase, and TRAINABLE_VARIABLES lists those of the first.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.callables import OURS
from graphfreeze.graph.refs import producer
from graphfreeze.graph.tf1 import is_variable_collection
from graphfreeze.graph.variables import Variable, is_float
from graphfreeze.passes.state import Stored, Work
from graphfreeze.savedmodel.protos import Message, VariableDef
from graphfreeze.selection import Strategy

_ALL, _TRAINABLE = "variables", "trainable_variables"
_HOLD_NEW = (_ALL, "model_variables")


def set_collections(work: Work) -> None:
    """Sets the entries of every variable that the plan touches, and adds those of the new ones."""
    touched = {
        handle: variable
        for variable, planned in zip(work.trace.variables, work.plan.variables, strict=True)
        if variable.index in work.merges or planned.enabled
        for handle in variable.handles
    }
    listed: dict[str, set[int]] = {}
    for name, collection in work.meta.collection_def.items():
        if is_variable_collection(name):
            values = list(collection.bytes_list.value)
            entries = _Entries(work, name)
            collection.bytes_list.value[:] = [e for i, v in enumerate(values) for e in entries.of(i, v, touched)]
            listed[name] = entries.seen
    for name in (_ALL, _TRAINABLE):
        for variable in touched.values():
            if variable.index not in listed.get(name, set()):
                _append(work, name, variable)
    for phase in work.plan.phases:
        names = [f"{handle}:0" for handle in _trained(work, phase.name)]
        work.meta.collection_def[phase_collection(phase.name)].node_list.value[:] = names


def phase_collection(phase: str) -> str:
    """The collection that names what a phase trains."""
    return f"{OURS}/{phase}"


def _trained(work: Work, phase: str) -> Iterator[str]:
    """Variable ops of what a phase trains, in the order of the graph, parts in their variable's place."""
    for variable, planned in zip(work.trace.variables, work.plan.variables, strict=True):
        if planned.kind != "weight" and not planned.enabled:
            continue
        if _is_listed(work, variable, phase):
            yield variable.handles[0]
        for stored in _stored(work, variable):
            if stored.new.trainable and _is_listed_part(work, variable, stored, phase):
                yield stored.handle


def _is_listed(work: Work, variable: Variable, phase: str | None) -> bool:
    """Whether the variable itself trains in a phase."""
    return _trains(work, variable) and work.plan.variables[variable.index].in_phase(phase).strategy is not Strategy.STOP


def _is_listed_part(work: Work, variable: Variable, stored: Stored, phase: str | None) -> bool:
    atoms = work.plan.variables[variable.index].in_phase(phase).atoms
    return any(a.trainable for n, a in enumerate(atoms) if stored.new.role == f"part:{n}")


class _Entries:
    """What becomes of the entries of one collection."""

    def __init__(self, work: Work, name: str) -> None:
        self.work, self.name = work, name
        self.seen: set[int] = set()
        """Variables that it lists."""

    def of(self, position: int, data: bytes, touched: dict[str, Variable]) -> Iterator[bytes]:
        """The entries that stand for one from now on."""
        described = VariableDef.FromString(data)
        variable = touched.get(producer(described.variable_name))
        if variable is None:
            yield data
            return
        self.seen.add(variable.index)
        trains = _trains(self.work, variable)
        kept = self.name != _TRAINABLE or _is_listed(self.work, variable, self.work.first_phase)
        changed = _changed(self.work, described, trains)
        if changed or not kept:
            note = {"position": position, "entry": base64.b64encode(data).decode(), "kept": kept}
            self.work.collections.setdefault(self.name, []).append(note)
        if kept:
            yield described.SerializeToString() if changed else data
        for stored in _stored(self.work, variable):
            now = _is_listed_part(self.work, variable, stored, self.work.first_phase)
            if now if self.name == _TRAINABLE else self.name in _HOLD_NEW:
                yield _describe(stored, variable).SerializeToString()


def _append(work: Work, name: str, variable: Variable) -> None:
    """A collection that leaves the variable out: what trains now joins it, and new variables are never without one."""
    enabled = work.plan.variables[variable.index].enabled
    listed = [s for s in _stored(work, variable) if _is_listed_part(work, variable, s, work.first_phase)]
    held = _stored(work, variable) if name == _ALL else listed if enabled else []
    entries = [_describe(stored, variable).SerializeToString() for stored in held]
    if name == _TRAINABLE and enabled and _is_listed(work, variable, work.first_phase):
        entries.append(_own(work, variable))
        work.collections.setdefault(name, []).append({"position": None, "name": variable.handles[0]})
    if entries:
        if name not in work.meta.collection_def:
            work.collections.setdefault(name, []).append({"created": True})
        work.meta.collection_def[name].bytes_list.value.extend(entries)


def _own(work: Work, variable: Variable) -> bytes:
    """How another collection describes a variable, with the flag on."""
    for name, collection in work.meta.collection_def.items():
        for data in collection.bytes_list.value if is_variable_collection(name) else ():
            described = VariableDef.FromString(data)
            if producer(described.variable_name) in variable.handles:
                described.trainable = True
                return bytes(described.SerializeToString())
    raise UnsupportedModelError(
        f"Cannot turn on '{variable.name}': no collection of the TF1 graph describes it, so no optimizer could be "
        "given it. Leave it out, or save the model with its collections"
    )


def _trains(work: Work, variable: Variable) -> bool:
    merge = work.merges.get(variable.index)
    return merge is None or merge.base_trains or not is_float(variable.dtype)


def _changed(work: Work, described: Message, trains: bool) -> bool:
    """Sets flag and value of an entry; whether that changed anything."""
    before = type(described).FromString(described.SerializeToString())
    if not trains or _is_enabled(work, described):
        described.trainable = trains
    node = producer(described.snapshot_name)
    if described.is_resource and node in work.renamed:
        # Python finds the handle behind this tensor, and a Saver saves it: it must be the raw read.
        described.snapshot_name = described.snapshot_name.replace(node, work.renamed[node], 1)
    return bool(described != before)


def _is_enabled(work: Work, described: Message) -> bool:
    pairs = zip(work.trace.variables, work.plan.variables, strict=True)
    return any(p.enabled and producer(described.variable_name) in v.handles for v, p in pairs)


def _stored(work: Work, variable: Variable) -> list[Stored]:
    return [s for (index, _), s in work.stored.items() if index == variable.index]


def _describe(stored: Stored, variable: Variable) -> VariableDef:
    name = stored.handle
    read = f"{name}/read:0" if variable.is_ref else f"{name}/Read/ReadVariableOp:0"
    return VariableDef(
        variable_name=f"{name}:0",
        initializer_name=f"{name}/Assign",
        snapshot_name=read,
        initial_value_name=stored.initial,
        is_resource=not variable.is_ref,
        trainable=stored.new.trainable,
    )
