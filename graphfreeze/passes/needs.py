"""What each function must be handed after the rewrite, worked out before anything is built.

A function that reads a frozen variable needs the handles of its storages. Inside a loop a full read is not merged at
every step: the value is merged before the loop and passed in, in the slot of the handle where nothing else in the loop
uses the handle (that also cures TensorFlow's missing gradients of loops that read variables), else appended. Functions
of data ops are handed values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from graphfreeze.graph.ops import Access, CallKind
from graphfreeze.graph.uses import Body, Call, Key, Read, Trace
from graphfreeze.lowering.merge import Merge
from graphfreeze.passes.state import StorageKey


class Mode(StrEnum):
    """Where a body runs, which decides what its reads are handed."""

    PLAIN = "plain"
    LOOP = "loop"
    """Full reads get a value, lookups the handles."""
    DATA = "data"
    """All reads get a value."""

    def inside(self, kind: CallKind) -> Mode:
        """The mode of a callee."""
        if self is Mode.DATA or kind is CallKind.DATA:
            return Mode.DATA
        return Mode.LOOP if self is Mode.LOOP or kind is CallKind.LOOP else Mode.PLAIN


@dataclass(frozen=True, slots=True)
class Needs:
    """What one body needs: values and handles by slot, and storages."""

    values: frozenset[int]
    handles: frozenset[int]
    storages: tuple[StorageKey, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """How the arguments of a function change: some slots turn into values, and arguments are appended."""

    inplace: frozenset[int] = frozenset()
    values: tuple[int, ...] = ()
    """Slots whose value is appended while the handle stays."""
    storages: tuple[StorageKey, ...] = ()
    returned: bool = False
    """Whether appended arguments are results too, as in the body of a loop."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes."""
        return not (self.inplace or self.values or self.storages)

    @property
    def appended(self) -> int:
        """Number of new arguments."""
        return len(self.values) + len(self.storages)


class NeedsAnalysis:
    """Answers for one trace and set of merges; remembers what it has worked out."""

    def __init__(self, trace: Trace, merges: Mapping[int, Merge]) -> None:
        self._trace = trace
        self._merges = merges
        self._needs: dict[tuple[Key, Mode], Needs] = {}
        self._touched: dict[Key, bool] = {}
        self._written: dict[Key, frozenset[int]] = {}
        self._in_loops = frozenset[int]().union(
            *(
                self._written_by(callee.key)
                for body in trace.all_bodies()
                for call in body.calls
                if call.op.kind is CallKind.LOOP
                for callee in call.callees
            )
        )

    def touched(self, key: Key) -> bool:
        """Whether the body, or one that it calls, reads a variable that is merged, or writes one that is guarded."""
        if key not in self._touched:
            body = self._trace.bodies[key]
            own = any(self.merged(r) is not None for r in body.reads) or self.guarded(body)
            self._touched[key] = own or any(self.touched(c.key) for call in body.calls for c in call.callees)
        return self._touched[key]

    def merged(self, read: Read) -> Merge | None:
        """The merge that a read gets, if it gets one."""
        merge = self._merges.get(read.variable)
        return merge if merge is not None and merge.merges_reads and read.access.path is not Access.SHAPE else None

    def guarded(self, body: Body) -> bool:
        """Whether the body writes a variable of which something is frozen, or holds its gradient."""
        return bool(self._guarded_variables(body))

    def guarded_below(self, key: Key) -> bool:
        """Whether the body, or one that it calls, writes a variable of which something is frozen."""
        body = self._trace.bodies[key]
        own = any(w.variable in self._merges for w in body.writes)
        return own or any(self.guarded_below(c.key) for call in body.calls for c in call.callees)

    def _guarded_variables(self, body: Body) -> tuple[int, ...]:
        found = dict.fromkeys([*(w.variable for w in body.writes), *(s.variable for s in body.sources)])
        return tuple(v for v in found if v in self._merges)

    def by_value(self, read: Read, mode: Mode) -> bool:
        """Whether a merged read is handed its value: not in a loop that writes the variable meanwhile."""
        hoisted = read.access.path is Access.FULL and read.variable not in self._in_loops
        return mode is Mode.DATA or (mode is Mode.LOOP and hoisted)

    def of(self, key: Key, mode: Mode) -> Needs:
        """What the body needs in a mode."""
        if (key, mode) not in self._needs:
            self._needs[key, mode] = self._work_out(key, mode)
        return self._needs[key, mode]

    def layout(self, call: Call, mode: Mode) -> Layout:
        """The common layout of everything that a call runs; ``mode`` is the caller's."""
        needs = [self.of(c.key, mode.inside(call.op.kind)) for c in call.callees]
        return layout_of(*needs)

    def callee_layout(self, call: Call, attribute: str, mode: Mode) -> Layout:
        """The layout of one of the functions: a loop's body hands everything back."""
        returned = call.op.kind is CallKind.LOOP and attribute == "body"
        return replace(self.layout(call, mode), returned=returned)

    def _written_by(self, key: Key) -> frozenset[int]:
        """Variables that the body, or one that it calls, writes."""
        if key not in self._written:
            body = self._trace.bodies[key]
            inner = (self._written_by(c.key) for call in body.calls for c in call.callees)
            self._written[key] = frozenset(w.variable for w in body.writes).union(*inner)
        return self._written[key]

    def _work_out(self, key: Key, mode: Mode) -> Needs:
        body = self._trace.bodies[key]
        values: set[int] = set()
        handles: set[int] = set(body.kept)
        storages: dict[StorageKey, None] = {}
        for read in body.reads:
            merge = self.merged(read)
            if merge is None:
                handles.add(read.slot)
            elif self.by_value(read, mode):
                values.add(read.slot)
            else:
                handles.add(read.slot)
                storages |= {(read.variable, role): None for role in merge.roles}
        for variable in self._guarded_variables(body):
            storages |= {(variable, role): None for role in self._merges[variable].geometry_roles}
        bound = dict(key.binding)
        for call in body.calls:
            layout = self.layout(call, mode)
            inner = {slot for c in call.callees for slot in self.of(c.key, mode.inside(call.op.kind)).handles}
            for slot, outer in call.slots:
                if slot in inner:
                    handles.add(outer)
                if slot not in layout.inplace and slot not in layout.values:
                    continue
                if mode is Mode.PLAIN:
                    handles.add(outer)
                    storages |= {(bound[outer], role): None for role in self._merges[bound[outer]].roles}
                else:
                    values.add(outer)
            storages |= dict.fromkeys(layout.storages)
        return Needs(frozenset(values), frozenset(handles), tuple(storages))


def layout_of(*needs: Needs) -> Layout:
    """One layout that serves all: branches of an If and both functions of a While share a signature."""
    values = frozenset[int]().union(*(n.values for n in needs))
    handles = frozenset[int]().union(*(n.handles for n in needs))
    storages = dict.fromkeys(s for n in needs for s in n.storages)
    return Layout(values - handles, tuple(sorted(values & handles)), tuple(storages))
