"""Holds frozen elements of the plain model by the plainest means, as the reference for functions that train inside.

A function that writes a frozen variable moves all of it in the plain model, so that nothing after that write can be
compared with the rewritten model. In a copy of the plain model, every such write is followed by one select from the
value before it, under a constant mask of the whole variable: no merges, no storages, no choice of guards, and slots are
left to themselves. Where a norm is computed from gradients, their frozen elements are zero.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from graphfreeze.graph.attrs import bool_attr, type_attr
from graphfreeze.graph.entries import entries, reached_bodies
from graphfreeze.graph.names import FreshNames
from graphfreeze.graph.refs import producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.trace import trace_meta_graph
from graphfreeze.graph.uses import Body, Trace, Write
from graphfreeze.lowering.emitter import BOOL, Emitter, control_inputs
from graphfreeze.lowering.holding import Evidence
from graphfreeze.savedmodel import DTYPE_NUMBERS, Draft
from graphfreeze.savedmodel.dtypes import NUMPY_DTYPES
from graphfreeze.savedmodel.protos import MetaGraphDef
from graphfreeze.selection import Region

SHARED = "it writes through a function that it shares between frozen and other variables, so it was not compared"

_Held = dict[int, Region]
"""By the variable's number, what of it is frozen."""


def hold_by_hand(plain: Draft, meta: MetaGraphDef, evidence: Evidence) -> tuple[Evidence, bool]:
    """Changes the plain ``meta`` so.

    Returns the evidence with what could not be held (``Callable.apart``), and whether anything was changed.
    """
    frozen = {h.source_place: h.frozen for h in evidence.holdings if not h.frozen.is_empty}
    if not any(place in frozen for c in evidence.callables for place, _ in c.writes):
        return evidence, False
    trace = trace_meta_graph(plain, meta)
    regions = {h.path: h.frozen for h in evidence.holdings}
    held = {v.index: regions[v.path] for v in trace.variables if v.path in regions}
    by_function: dict[str, list[Body]] = defaultdict(list)
    for body in trace.bodies.values():
        by_function[body.key.function].append(body)
    writes = {name: _writes(bodies, held) for name, bodies in by_function.items()}
    shared = {name for name, found in writes.items() if found is None}
    for function in meta.graph_def.library.function:
        name = function.signature.name
        scope, names = Scope(function), FreshNames([*(n.name for n in function.node_def), *Scope(function).arguments])
        for body in by_function[name][:1] if name in by_function and name not in shared else ():
            _mask_sources(scope, names, body, held)
        _hold(scope, names, writes.get(name) or [], trace, held)
    if not shared:
        return evidence, True
    functions = {e.label: e.function for e in entries(meta)}
    apart = {label for label, f in functions.items() if any(b.key.function in shared for b in reached_bodies(trace, f))}
    callables = tuple(replace(c, apart=c.apart or SHARED) if c.label in apart else c for c in evidence.callables)
    return replace(evidence, callables=callables), True


def _writes(bodies: list[Body], held: _Held) -> list[Write] | None:
    """All writes of a function for all its callers; None where the same one is held for some and not for others.

    A body that is reached through the main graph may know fewer of its variables.
    """
    found: dict[tuple[str, int], Write] = {}
    for write in (w for body in bodies for w in body.writes):
        known = found.setdefault((write.node, write.index), write)
        if held.get(known.variable) != held.get(write.variable):
            return None
    return list(found.values())


def _mask_sources(scope: Scope, names: FreshNames, body: Body, held: _Held) -> None:
    """Zeros at frozen elements of every gradient that a norm is computed from, again under a constant mask."""
    for source in body.sources:
        if source.variable not in held:
            continue
        emit = Emitter(scope, names, producer(source.tensor))
        flags = emit.const(held[source.variable].to_mask())
        if source.ids is not None:
            flags = emit.gather(flags, source.ids[0], BOOL, source.ids[1])
        zero = emit.const(np.zeros((), NUMPY_DTYPES[source.dtype]))
        masked = emit.select(flags, zero, source.tensor, source.dtype)
        for use in source.uses:
            if use.result is not None:
                scope.proto.ret[use.result] = masked
            else:
                scope.nodes[use.node].input[use.index] = masked


def _hold(scope: Scope, names: FreshNames, writes: list[Write], trace: Trace, held: _Held) -> None:
    for write in writes:
        if write.variable in held:
            _put_back(scope, names, write, trace, held[write.variable])


def _put_back(scope: Scope, names: FreshNames, write: Write, trace: Trace, region: Region) -> None:
    """The write, then the select; whoever waited for the write waits for both, for they change names."""
    node, variable = scope.nodes[write.node], trace.variables[write.variable]
    name, dtype = node.name, DTYPE_NUMBERS[variable.dtype]
    handle = scope.data_inputs(node)[write.index]
    awaited = [f"^{p}" for t in scope.data_inputs(node) if t != handle and (p := producer(t)) in scope.nodes]
    emit = Emitter(scope, names, name, list(dict.fromkeys([*awaited, *control_inputs(node)])))
    before = emit.read(handle, dtype, variable.shape)
    node.name = names.fresh(f"{name}/graphfreeze/inner")
    node.input.append(f"^{producer(before)}")
    scope.nodes[node.name] = node
    after = emit.op("ReadVariableOp", [handle, f"^{node.name}"], {"dtype": type_attr(dtype)})
    value = emit.select(emit.const(region.to_mask()), before, after, dtype)
    attrs = {"dtype": type_attr(dtype), "validate_shape": bool_attr(False)}
    last = emit.node_of(emit.op("AssignVariableOp", [handle, value], attrs))
    last.name = name
    scope.nodes[name] = last
