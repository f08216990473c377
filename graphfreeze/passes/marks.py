"""Reads back what a rewrite left in a model: facts on merge nodes first, ``info`` for what has no merge.

Marks on nodes inside functions survive every way of saving a model again; ``info`` is lost where another tool exports
the model as part of a larger one. So whatever a merge says counts, and ``info`` adds variables that nothing reads and
the places in the root's lists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.attrs import ADDED, FACT, REPLACES, tensor_value
from graphfreeze.graph.refs import attr_of, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.uses import Body, Trace
from graphfreeze.lowering.facts import Fact, check_format, read_fact
from graphfreeze.passes.found import Frozen, Holder, Marks
from graphfreeze.passes.presence import info_functions
from graphfreeze.passes.tf1_marks import read_graph_marks
from graphfreeze.savedmodel import Draft, children, slot_variables
from graphfreeze.savedmodel.protos import FunctionDef, MetaGraphDef

_OURS = re.compile(r".*/graphfreeze/(trainable|frozen|mask)(_\d+)*")


def is_ours(name: str) -> bool:
    """Whether a variable or handle has a name that a rewrite gives, perhaps counted on."""
    return _OURS.fullmatch(name) is not None


def in_function(function: FunctionDef) -> bool:
    """Whether a function holds a node that a rewrite added or changed."""
    return any(key.startswith("_graphfreeze") for node in Scope(function).node_list for key in node.attr)


def read_marks(draft: Draft, meta: MetaGraphDef, trace: Trace) -> Marks:
    """Everything that a rewrite left, tied to the variables of the trace.

    Raises:
        UnsupportedModelError: a newer version wrote it, it cannot be read, or a storage is missing.
    """
    return _Reader(draft, meta, trace).read() if trace.is_tf2 else read_graph_marks(meta, trace)


def _read_info(functions: dict[str, FunctionDef], name: str) -> dict[str, Any]:
    for node in functions[name].node_def if name in functions else ():
        if node.op == "Const" and node.attr["value"].tensor.string_val:
            try:
                data: dict[str, Any] = json.loads(node.attr["value"].tensor.string_val[0])
            except ValueError:
                break
            check_format(data.get("format"))
            return data
    raise UnsupportedModelError(
        f"Function '{name}' should say what graphfreeze did to this model and does not. Rewrite the original model "
        "again"
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a fact stands: a merge in a function, or ``info``."""

    near: dict[str, list[int]]
    """Variables by name that are this merge's, or this ``info``'s: others may have the same names."""
    constants: dict[str, NDArray[np.generic]]
    """Geometry by key."""


class _Reader:
    def __init__(self, draft: Draft, meta: MetaGraphDef, trace: Trace) -> None:
        self.draft, self.trace = draft, trace
        self.graph = meta.object_graph_def
        self.functions = {f.signature.name: f for f in meta.graph_def.library.function}
        self.holders = tuple(Holder(p, n, _read_info(self.functions, f), f) for p, n, f in info_functions(meta))
        self.by_node = {v.node_id: v.index for v in trace.variables if v.node_id is not None}
        self.found: dict[int, Frozen] = {}

    def read(self) -> Marks:
        told: dict[int, tuple[Holder, dict[str, Any]]] = {}
        for holder in self.holders:
            for data in holder.info["variables"]:
                place = holder.place(self.graph, data["path"])
                if place is not None and place in self.by_node:
                    told[self.by_node[place]] = (holder, data)
        for body in self.trace.bodies.values():
            for variable, text, anchor in _facts_in(self.functions[body.key.function], body):
                if variable not in self.found:
                    by = told[variable][0] if variable in told else None
                    self.found[variable] = self._tie(variable, json.loads(text), self._merge(body, anchor), by)
        for variable, (holder, data) in told.items():
            if variable not in self.found:
                self.found[variable] = self._tie(variable, data, self._info(holder), holder)
        frozen = tuple(self.found[v] for v in sorted(self.found))
        places = (h.place(self.graph, path) for h in self.holders for path in h.info["enabled"])
        enabled = tuple(self.by_node[p] for p in places if p in self.by_node)
        return Marks(frozen, self._ours(frozen), self.holders, enabled)

    def _merge(self, body: Body, anchor: str) -> _Place:
        prefix = f"{anchor}/graphfreeze/"
        near: dict[str, list[int]] = {}
        for read in body.reads:
            if read.node.startswith(prefix):
                near.setdefault(self.trace.variables[read.variable].name, []).append(read.variable)
        constants = {
            attr_of(node, ADDED).s.decode(): tensor_value(node.attr["value"].tensor)
            for node in self.functions[body.key.function].node_def
            if node.op == "Const" and ADDED in node.attr and node.name.startswith(prefix)
        }
        return _Place(near, constants)

    def _info(self, holder: Holder) -> _Place:
        near: dict[str, list[int]] = {}
        for index in self._held(holder):
            near.setdefault(self.trace.variables[index].name, []).append(index)
        return _Place(near, {})

    def _held(self, holder: Holder) -> Iterator[int]:
        """The variables that hang under ``graphfreeze/variables``."""
        found = children(self.graph, holder.node).get("variables")
        for child in () if found is None else self.graph.nodes[found].children:
            if child.node_id in self.by_node:
                yield self.by_node[child.node_id]

    def _tie(self, variable: int, data: dict[str, Any], place: _Place, holder: Holder | None) -> Frozen:
        check_format(data.get("format"))
        names = {h["role"]: h["name"] for h in data["held"] if h["role"]} | dict(data["masks"])
        storages: dict[str, int] = {}
        for role, name in names.items():
            candidates = place.near.get(name) or [v.index for v in self.trace.variables if v.name == name]
            if not candidates:
                raise UnsupportedModelError(
                    f"Variable '{name}', which holds a part of '{self.trace.variables[variable].name}', is missing "
                    "from the model, so its values cannot be put back together. Finalize the model before another "
                    "tool drops it"
                )
            storages[role] = candidates[0]

        def geometry(key: str) -> NDArray[np.generic] | None:
            held = storages.get(f"mask:{key}")
            if held is None:
                return place.constants.get(key)
            stored = self.trace.variables[held].key
            return None if stored is None else self.draft.tensor(stored)

        return Frozen(variable, read_fact(data, geometry), storages, holder)

    def _ours(self, frozen: tuple[Frozen, ...]) -> frozenset[int]:
        ours = {s for f in frozen for s in f.storages.values()}
        ours |= {index for holder in self.holders for index in self._held(holder)}
        used = {read.variable for body in self.trace.all_bodies() for read in body.reads}
        # Keras stores a second copy of every variable; one that could not be told apart by name is left alone by all.
        ours |= {v.index for v in self.trace.variables if v.index not in used and is_ours(v.name)}
        nodes = {n for v in ours for n in (self.trace.variables[v].node_id, *self.trace.variables[v].copies)}
        slots = {s.slot for s in slot_variables(self.graph) if s.variable in nodes}
        return frozenset(ours | {self.by_node[s] for s in slots if s in self.by_node})


def _facts_in(function: FunctionDef, body: Body) -> Iterator[tuple[int, str, str]]:
    """(variable, fact, anchor) of every merge in a function."""
    readers = {r.node: r.variable for r in body.reads}
    readers |= {lookup.node: r.variable for r in body.reads for lookup in r.access.lookups}
    for node in function.node_def:
        if FACT in node.attr:
            raw = producer(node.attr[REPLACES].s.decode())
            if raw in readers:
                yield readers[raw], node.attr[FACT].s.decode(), node.name.split("/graphfreeze/")[0]


def as_told(draft: Draft, trace: Trace, frozen: Frozen) -> Fact:
    """The fact as ``info`` has it, or as the merge has it where ``info`` is gone."""
    if frozen.holder is None:
        return frozen.fact

    def geometry(key: str) -> NDArray[np.generic] | None:
        held = frozen.storages.get(f"mask:{key}")
        stored = None if held is None else trace.variables[held].key
        return None if stored is None else draft.tensor(stored)

    told: list[dict[str, Any]] = [d for d in frozen.holder.info["variables"] if d["path"] == frozen.fact.path]
    return read_fact(told[0], geometry) if told else frozen.fact
