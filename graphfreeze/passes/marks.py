"""Reads back what a rewrite left in a model: facts on merge nodes first, ``info`` for what has no merge.

Marks on nodes inside functions survive every way of saving a model again; ``info`` is lost where another tool exports
the model as part of a larger one. So whatever a merge says counts, and ``info`` adds variables that nothing reads and
the places in the root's lists.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.attrs import ADDED, FACT, REPLACES, tensor_value
from graphfreeze.graph.refs import attr_of, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.trace import Body, Trace
from graphfreeze.passes.facts import Fact, check_format, read_fact
from graphfreeze.passes.info import INFO, INFO_FUNCTION
from graphfreeze.passes.variables import CHILD
from graphfreeze.savedmodel import Draft, children, node_at
from graphfreeze.savedmodel.protos import FunctionDef, Message, MetaGraphDef
from graphfreeze.selection import Region, complement, whole_region


@dataclass(frozen=True, slots=True)
class Frozen:
    """One variable that carries a freeze: the fact, and the variables that are its storages by role."""

    variable: int
    fact: Fact
    storages: dict[str, int]

    @property
    def region(self) -> Region:
        """Its frozen elements."""
        if not self.fact.held:
            return whole_region(self.fact.shape)
        held = self.fact.held[0]
        return complement(held.region) if held.trainable else held.region


@dataclass(frozen=True, slots=True)
class Marks:
    """All that a rewrite left in one meta graph."""

    frozen: tuple[Frozen, ...]
    ours: frozenset[int]
    """Variables that the rewrite added."""
    info: dict[str, Any] = field(default_factory=dict)
    info_function: str | None = None

    @property
    def saved_again(self) -> bool:
        """Whether TensorFlow has written the model since the rewrite."""
        return self.info_function != INFO_FUNCTION


def has_marks(meta: MetaGraphDef) -> bool:
    """Whether a meta graph carries a freeze, or what is left of one."""
    if info_function(meta) is not None:
        return True
    return any(FACT in node.attr for f in meta.graph_def.library.function for node in f.node_def)


def info_function(meta: MetaGraphDef) -> str | None:
    """The concrete function that tells about the freeze, if the model still has it."""
    graph = meta.object_graph_def
    if not graph.nodes or CHILD not in (found := children(graph, 0)):
        return None
    node_id = children(graph, found[CHILD]).get(INFO)
    if node_id is None or graph.nodes[node_id].WhichOneof("kind") != "function":
        return None
    names = graph.nodes[node_id].function.concrete_functions
    return names[0] if names else None


def read_info(meta: MetaGraphDef) -> dict[str, Any]:
    """What ``info`` says.

    Raises:
        UnsupportedModelError: a newer version wrote it, or it cannot be read.
    """
    name = info_function(meta)
    function = next((f for f in meta.graph_def.library.function if f.signature.name == name), None)
    if function is None:
        return {}
    for node in function.node_def:
        if node.op == "Const" and node.attr["value"].tensor.string_val:
            try:
                data: dict[str, Any] = json.loads(node.attr["value"].tensor.string_val[0])
            except ValueError:
                break
            check_format(data.get("format"))
            return data
    raise UnsupportedModelError(
        f"Function '{name}' should say what graphfreeze did to this model and does not. Rewrite the original model again"
    )


def read_marks(draft: Draft, meta: MetaGraphDef, trace: Trace) -> Marks:
    """Everything that a rewrite left, tied to the variables of the trace."""
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    found: dict[int, Frozen] = {}
    for body in trace.bodies.values():
        for variable, text, anchor in _facts_in(functions[body.key.function], body):
            if variable not in found:
                found[variable] = _tie(draft, trace, functions[body.key.function], body, variable, text, anchor)
    info = read_info(meta)
    by_node = {v.node_id: v.index for v in trace.variables if v.node_id is not None}
    for data in info.get("variables", ()):
        variable = by_node.get(place_of(meta.object_graph_def, info, data["path"]))
        if variable is not None and variable not in found:
            found[variable] = _tie(draft, trace, None, None, variable, data, "")
    frozen = tuple(found[v] for v in sorted(found))
    ours = frozenset(s for f in frozen for s in f.storages.values())
    return Marks(frozen, ours, info, info_function(meta))


def place_of(graph: Message, info: dict[str, Any], path: str) -> int | None:
    """The object-graph node of a variable that had this path in the source."""
    names = info.get("places", {}).get(path)
    return None if names is None else node_at(graph, tuple(names))


def _facts_in(function: FunctionDef, body: Body) -> Iterator[tuple[int, str, str]]:
    """(variable, fact, anchor) of every merge in a function."""
    readers = {r.node: r.variable for r in body.reads}
    readers |= {lookup.node: r.variable for r in body.reads for lookup in r.access.lookups}
    for node in function.node_def:
        if FACT in node.attr:
            raw = producer(node.attr[REPLACES].s.decode())
            if raw in readers:
                yield readers[raw], node.attr[FACT].s.decode(), node.name.split("/graphfreeze/")[0]


def _tie(
    draft: Draft,
    trace: Trace,
    function: FunctionDef | None,
    body: Body | None,
    variable: int,
    text: str | dict[str, Any],
    anchor: str,
) -> Frozen:
    names = _storage_names(text)
    near = _near(trace, body, anchor) if body is not None else {}
    storages: dict[str, int] = {}
    for role, name in names.items():
        candidates = [i for i in near.get(name, ())] or [v.index for v in trace.variables if v.name == name]
        if not candidates:
            raise UnsupportedModelError(
                f"Variable '{name}', which holds a part of '{trace.variables[variable].name}', is missing from the "
                "model, so its values cannot be put back together. Finalize the model before another tool drops it"
            )
        storages[role] = candidates[0]

    def geometry(key: str) -> NDArray[np.generic] | None:
        held = storages.get(f"mask:{key}")
        if held is not None:
            stored = trace.variables[held].key
            return None if stored is None else draft.tensor(stored)
        for node in function.node_def if function is not None else ():
            if node.op == "Const" and attr_of(node, ADDED).s.decode() == key and node.name.startswith(f"{anchor}/graphfreeze/"):
                return tensor_value(node.attr["value"].tensor)
        return None

    return Frozen(variable, read_fact(text, geometry), storages)


def _storage_names(text: str | dict[str, Any]) -> dict[str, str]:
    data = json.loads(text) if isinstance(text, str) else text
    check_format(data.get("format"))
    return {h["role"]: h["name"] for h in data["held"] if h["role"]} | dict(data["masks"])


def _near(trace: Trace, body: Body, anchor: str) -> dict[str, list[int]]:
    """Variables read by the nodes of one merge, by name: right even where two models of one origin live together."""
    near: dict[str, list[int]] = {}
    for read in body.reads:
        if read.node.startswith(f"{anchor}/graphfreeze/"):
            near.setdefault(trace.variables[read.variable].name, []).append(read.variable)
    return near


def in_function(function: FunctionDef) -> bool:
    """Whether a function holds a node that a rewrite added or changed."""
    return any(key.startswith("_graphfreeze") for node in Scope(function).node_list for key in node.attr)
