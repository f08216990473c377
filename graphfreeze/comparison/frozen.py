"""Whether frozen elements have moved between two states of one freeze, or since the original."""

from __future__ import annotations

from dataclasses import dataclass

from graphfreeze.comparison.difference import FrozenElements, ValueChange
from graphfreeze.comparison.tensors import value_change
from graphfreeze.graph.trace import trace_meta_graph
from graphfreeze.graph.uses import Trace
from graphfreeze.graph.variables import Variable
from graphfreeze.passes.found import Frozen
from graphfreeze.passes.marks import read_marks
from graphfreeze.passes.presence import has_marks
from graphfreeze.planning.views import stored_value
from graphfreeze.savedmodel import Array, Draft
from graphfreeze.savedmodel.protos import MetaGraphDef
from graphfreeze.selection import Region


@dataclass(frozen=True, slots=True)
class _Held:
    """What a model holds frozen, and its variables."""

    draft: Draft
    trace: Trace
    frozen: dict[str, Frozen]
    """By name and path in the source."""

    def region(self, name: str) -> Region:
        return self.frozen[name].region

    def value(self, frozen: Frozen) -> Array | None:
        """The effective value at frozen elements; None where the checkpoint has not all of it."""
        value = self._stored(frozen.variable)
        if value is None or value.shape != frozen.fact.shape:
            return None
        for held in frozen.fact.held:
            if held.role is not None and not held.trainable:
                stored = self._stored(frozen.storages[held.role])
                if stored is None or stored.shape != held.region.storage_shape:
                    return None
                value = held.region.put(value, stored)
        return value

    def _stored(self, variable: int) -> Array | None:
        return _tensor(self.draft, self.trace.variables[variable])


def frozen_elements(
    a: Draft, meta: MetaGraphDef, b: Draft, other_meta: MetaGraphDef
) -> tuple[FrozenElements | None, tuple[str, ...]]:
    """Compares effective values at frozen elements; None, and why, where there is nothing to compare."""
    one, other = _held(a, meta), _held(b, other_meta)
    if not one.frozen and not other.frozen:
        return None, ()
    if one.frozen and other.frozen:
        unlike = [n for n in {**one.frozen, **other.frozen} if not _alike(one, other, n)]
        if unlike:
            names = ", ".join(f"'{name}'" for name in unlike[:3])
            return None, (f"the two models freeze different elements (of {names}), so these are not compared",)
    marked = one if one.frozen else other
    elements, changes = 0, []
    for name, frozen in marked.frozen.items():
        region = frozen.region
        values = [_value(side, name, frozen) for side in (one, other)]
        if values[0] is None or values[1] is None or values[0].shape != values[1].shape:
            return None, (f"not both models hold a whole value of '{name}', so frozen elements are not compared",)
        elements += region.count
        found = value_change(name, "", values[0], values[1], region)
        changes += [] if found is None else [found]
    changed: tuple[ValueChange, ...] = tuple(changes)
    return FrozenElements(elements, sum(v.changed for v in changed), changed), ()


def _held(draft: Draft, meta: MetaGraphDef) -> _Held:
    trace = trace_meta_graph(draft, meta)
    marks = read_marks(draft, meta, trace).frozen if has_marks(meta) else ()
    names = [f.fact.name for f in marks]
    return _Held(draft, trace, {(f.fact.path if names.count(f.fact.name) > 1 else f.fact.name): f for f in marks})


def _alike(a: _Held, b: _Held, name: str) -> bool:
    return name in a.frozen and name in b.frozen and a.region(name) == b.region(name)


def _value(side: _Held, name: str, like: Frozen) -> Array | None:
    if name in side.frozen:
        return side.value(side.frozen[name])
    variables = side.trace.variables
    found = [v for v in variables if v.path == like.fact.path and v.name == like.fact.name]
    found = found or [v for v in variables if v.name == like.fact.name]
    return _tensor(side.draft, found[0]) if len(found) == 1 else None


def _tensor(draft: Draft, variable: Variable) -> Array | None:
    """What the checkpoint holds of a variable; of a part, its box of the whole."""
    if variable.key is None or variable.key not in draft.keys():  # noqa: SIM118 (a Draft is no mapping)
        return None
    return stored_value(variable, draft.tensor)
