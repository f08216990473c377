"""Takes a freeze off: the plain model with effective values, and no node, capture or variable of ours left.

Works from what the graph says now, so it holds after training and saving again, with or without signatures, and after
the model was exported inside a larger one. Nothing of the model runs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from graphfreeze.errors import InputOutputError, InternalError, UnsupportedModelError
from graphfreeze.graph.ops import CALLS
from graphfreeze.graph.refs import producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.trace import trace_meta_graph
from graphfreeze.graph.uses import Trace
from graphfreeze.graph.variables import Part, is_tf2
from graphfreeze.lowering.facts import Fact
from graphfreeze.passes.batch_norm import functions_with_stored
from graphfreeze.passes.check import Invariants
from graphfreeze.passes.found import Frozen, Marks
from graphfreeze.passes.keras_metadata import KEPT, METADATA
from graphfreeze.passes.marks import is_ours, read_marks
from graphfreeze.passes.presence import has_marks
from graphfreeze.passes.prune import remove_unreachable
from graphfreeze.passes.saved_graph import update_saved_graph
from graphfreeze.passes.tf1_undo import undo_graph
from graphfreeze.passes.undo_calls import Change
from graphfreeze.passes.undo_concrete import rename_concrete
from graphfreeze.passes.undo_functions import Undo
from graphfreeze.passes.undo_nodes import remove_handles
from graphfreeze.passes.undo_objects import nodes_of, undo_objects
from graphfreeze.passes.undo_ops import restore_ops, silenced_ops, used_ops
from graphfreeze.passes.undo_phases import phase_functions, phase_names, undo_phases
from graphfreeze.passes.undo_saver import undo_saver
from graphfreeze.passes.undo_steps import take_steps_off
from graphfreeze.savedmodel import (
    Draft,
    StoredTensor,
    object_paths,
    recompute_keys,
    unused_bytes,
    variable_keys,
)
from graphfreeze.savedmodel.protos import FunctionDef, MetaGraphDef
from graphfreeze.selection import Region


@dataclass(frozen=True, slots=True)
class Finalized:
    """What ``finalize`` did: the variables whose freeze was lifted, and warnings."""

    variables: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    out: str = ""


@dataclass(frozen=True, slots=True)
class Lifted:
    """One variable that was frozen: what it is called in the plain model, and how it was held."""

    name: str
    path: str
    region: Region
    fact: Fact


@dataclass(frozen=True, slots=True)
class TakenOff:
    """A freeze that is off: what it held, and the paths of variables that it had turned on."""

    frozen: tuple[Lifted, ...] = ()
    enabled: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()
    inference: bool = False
    """Whether batch norms used their stored statistics in training mode."""
    phases: tuple[str, ...] = ()
    """Names of the phases that it had."""
    steps: tuple[str, ...] = ()
    """Signatures of ``train-step`` that went with it."""

    @property
    def lost_steps(self) -> tuple[str, ...]:
        """What to say where a freeze takes the place of another one, whose training steps do not fit it."""
        if not self.steps:
            return ()
        taken = f"the training steps that the model brought are taken off ({', '.join(self.steps)})"
        return (f"{taken}: they train within the old freeze. Put them in again with: graphfreeze train-step",)

    def and_also(self, other: TakenOff) -> TakenOff:
        """Both of two meta graphs; a variable that they share is told of once."""
        paths = {v.path for v in self.frozen}
        frozen = (*self.frozen, *(v for v in other.frozen if v.path not in paths))
        warnings = (*self.warnings, *other.warnings)
        phases = tuple(dict.fromkeys((*self.phases, *other.phases)))
        inference = self.inference or other.inference
        return TakenOff(frozen, self.enabled | other.enabled, warnings, inference, phases)

    @property
    def held(self) -> dict[str, Region]:
        """Path -> frozen elements."""
        return {v.path: v.region for v in self.frozen}


def take_off(draft: Draft) -> TakenOff:
    """Takes the whole freeze off.

    Raises:
        UnsupportedModelError: marks of a newer version, damaged ones, or a node of the user's uses what has to go.
        InputOutputError: the checkpoint lacks a value that is needed.
    """
    off = TakenOff()
    gone: set[str] = set()
    steps: list[str] = []
    for meta in draft.model.proto.meta_graphs:
        steps += take_steps_off(draft, meta)
        if not has_marks(meta):
            continue
        invariants = Invariants(meta)
        off = off.and_also(TakenOff(inference=bool(functions_with_stored(meta))))
        off = off.and_also((_take_off if is_tf2(meta) else _take_off_graph)(draft, meta, gone))
        if (broken := invariants.first_broken(last=True)) is not None:
            rule, place = broken
            raise InternalError(
                f"finalize broke the rule '{rule}': {place}. This is a bug in graphfreeze; please report it"
            )
    # Meta graphs share the weights, so what holds a part of a value goes when all have theirs back.
    draft.drop |= gone & draft.keys()
    _restore_metadata(draft)
    if draft.model.bundle is not None and unused_bytes(draft.model.bundle, draft.drop | set(draft.put)) > 0:
        draft.repack = True
    return replace(off, steps=tuple(dict.fromkeys(steps)))


def _take_off_graph(draft: Draft, meta: MetaGraphDef, gone: set[str]) -> TakenOff:
    """As ``_take_off`` for a TF1 graph, which has no objects."""
    trace = trace_meta_graph(draft, meta)
    marks = read_marks(draft, meta, trace)
    ops, silenced = used_ops(meta), silenced_ops(meta)
    _Values(draft, meta, trace).restore(marks)
    gone |= {v.key for i in marks.ours if (v := trace.variables[i]).key is not None}
    handles = {h for v in marks.ours for h in trace.variables[v].handles}
    undo = Undo({f.signature.name: f for f in meta.graph_def.library.function}, saved_again=False)
    main = Scope(meta.graph_def)
    for node in main.node_list:
        if node.op in CALLS:
            undo.undo_call(main, node, handles)
    remove_unreachable(meta, _place(meta, undo))
    lost = undo_graph(meta, handles)
    restore_ops(meta, ops, silenced)
    variables = trace.variables
    frozen = (Lifted(variables[f.variable].label, variables[f.variable].path, f.region, f.fact) for f in marks.frozen)
    turned_on = {f.variable for f in marks.frozen if f.fact.enabled} | set(marks.enabled)
    paths = frozenset(variables[v].path for v in turned_on)
    return TakenOff(tuple(frozen), paths, _lost_warning(lost), phases=phase_names(marks))


def _lost_warning(lost: Sequence[str]) -> tuple[str, ...]:
    if not lost:
        return ()
    warning = (
        f"{len(lost)} nodes that were added after the rewrite compute with the parts that are joined again, and went "
        f"with them (one is '{lost[0]}'): build the training step anew on the finalized model"
    )
    return (warning,)


def _take_off(draft: Draft, meta: MetaGraphDef, gone: set[str]) -> TakenOff:
    trace = trace_meta_graph(draft, meta)
    marks = read_marks(draft, meta, trace)
    ops, silenced = used_ops(meta), silenced_ops(meta)
    values = _Values(draft, meta, trace)
    values.restore(marks)
    # Keys are counted anew below, so what goes has to be gone before.
    draft.drop |= {values.keys[n] for n in nodes_of(trace, marks.ours) if n in values.keys} & draft.keys()
    of_phases = phase_functions(meta, marks)
    changes = {name: change for name, change in _root_changes(meta, trace, marks).items() if name not in of_phases}
    before = copy.deepcopy(draft.bundle_graph)
    moved = undo_objects(meta, draft.bundle_graph, trace, marks)
    undo_phases(meta, marks, of_phases)
    renamed = _rename_keys(draft) if marks.saved_again else {}
    handles = {h for v in marks.ours for h in trace.variables[v].handles}
    # Keras leaves a handle more for each variable, which no object speaks of.
    handles |= {n.name for n in meta.graph_def.node if n.op == "VarHandleOp" and is_ours(n.name)}
    undo_saver(meta, handles, renamed)
    update_saved_graph(meta, before, draft.bundle_graph, renamed)
    _restore_functions(meta, handles, changes, marks)
    restore_ops(meta, ops, silenced)
    paths = object_paths(meta.object_graph_def)
    places = {v.index: paths.get(moved[v.node_id], v.path) for v in trace.variables if v.node_id in moved}
    frozen = (Lifted(trace.variables[f.variable].name, places[f.variable], f.region, f.fact) for f in marks.frozen)
    turned_on = {f.variable for f in marks.frozen if f.fact.enabled} | set(marks.enabled)
    return TakenOff(tuple(frozen), frozenset(places[v] for v in turned_on), phases=phase_names(marks))


class _Values:
    """Effective values, put together from what the checkpoint holds."""

    def __init__(self, draft: Draft, meta: MetaGraphDef, trace: Trace) -> None:
        self.draft, self.trace = draft, trace
        graph = draft.bundle_graph
        self.keys = {} if graph is None else variable_keys(meta.object_graph_def, graph)

    def restore(self, marks: Marks) -> None:
        """Writes effective values over the bases, where they differ."""
        for frozen in marks.frozen:
            held = [(h.region, frozen.storages[h.role]) for h in frozen.fact.held if h.role is not None]
            if held:
                base = self.trace.variables[frozen.variable]
                self._restore(frozen, base.key, [(r, self.trace.variables[s].key) for r, s in held])
                for i, copy_node in enumerate(base.copies):
                    # A second copy of the variable has its value in second copies of the storages, if it ever moved.
                    parts = [(r, self.trace.variables[s].copies[i : i + 1]) for r, s in held]
                    if all(nodes for _, nodes in parts):
                        keys = [(r, self.keys.get(nodes[0])) for r, nodes in parts]
                        self._restore(frozen, self.keys.get(copy_node), keys)

    def _restore(self, frozen: Frozen, key: str | None, held: Sequence[tuple[Region, str | None]]) -> None:
        part = self.trace.variables[frozen.variable].part
        if part is not None and key is not None:
            self._restore_part(frozen, key, part, held)
            return
        stored = self._read(frozen, key, frozen.fact.shape)
        value = stored
        for region, source in held:
            value = region.put(value, self._read(frozen, source, region.storage_shape))
        if key is not None and value.tobytes() != stored.tobytes():
            self.draft.put[key] = np.asarray(value, order="C")

    def _restore_part(self, frozen: Frozen, key: str, part: Part, held: Sequence[tuple[Region, str | None]]) -> None:
        """The checkpoint holds the whole of a partitioned variable."""
        whole = self._read(frozen, key, part.whole_shape)
        value = whole[part.index]
        for region, source in held:
            value = region.put(value, self._read(frozen, source, region.storage_shape))
        if value.tobytes() != whole[part.index].tobytes():
            changed = whole.copy()
            changed[part.index] = value
            self.draft.put[key] = changed

    def _read(self, frozen: Frozen, key: str | None, shape: tuple[int, ...]) -> NDArray[np.generic]:
        name = frozen.fact.name
        stored = self.draft.keys()
        if key is None or key not in stored:
            raise InputOutputError(
                f"The checkpoint of '{self.draft.model.directory}' holds no value under key {key!r}, so the value of "
                f"'{name}' cannot be put together. Copy the whole 'variables' folder, or save the model again"
            )
        value = self.draft.tensor(key)
        if value.shape != shape:
            raise UnsupportedModelError(
                f"The tensor under '{key}' holds a part of '{name}' and should have shape {list(shape)}, found "
                f"{list(value.shape)}. It was changed since the rewrite; restore it from the model that was rewritten"
            )
        return value


def _rename_keys(draft: Draft) -> dict[str, str]:
    """Keys are paths: TensorFlow counted them on the graph with our variables in it."""
    if draft.bundle_graph is None:
        return {}
    renamed = recompute_keys(draft.bundle_graph)
    stored = draft.keys() | draft.drop
    moved = {new: draft.put.get(old, StoredTensor(old)) for old, new in renamed.items() if old in stored}
    draft.drop |= renamed.keys() & stored
    draft.put = {key: value for key, value in draft.put.items() if key not in renamed} | moved
    return renamed


def _restore_functions(meta: MetaGraphDef, handles: set[str], changes: Mapping[str, Change], marks: Marks) -> None:
    main = Scope(meta.graph_def)
    saver = {producer(meta.saver_def.restore_op_name), producer(meta.saver_def.save_tensor_name)}
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    undo = Undo(functions, saved_again=marks.saved_again)
    for node in main.node_list:
        if node.op in CALLS and node.name not in saver:
            undo.undo_call(main, node, handles)
    rename_concrete(meta, {name: undo.build(name, change) for name, change in changes.items()})
    undo.build_uncalled()
    replaced = _place(meta, undo)
    remove_handles(main, handles)
    remove_unreachable(meta, replaced | marks.info_functions)


def _root_changes(meta: MetaGraphDef, trace: Trace, marks: Marks) -> dict[str, Change]:
    """For each concrete function, the arguments that are bound to variables of ours."""
    ours = nodes_of(trace, marks.ours)
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    changes: dict[str, Change] = {}
    for name, concrete in meta.object_graph_def.concrete_functions.items():
        if name in functions and name not in marks.info_functions:
            first = len(functions[name].signature.input_arg) - len(concrete.bound_inputs)
            dropped = frozenset(first + i for i, n in enumerate(concrete.bound_inputs) if n in ours)
            changes[name] = Change(dropped)
    return changes


def _place(meta: MetaGraphDef, undo: Undo) -> set[str]:
    """Puts restored functions where the changed ones stood; returns the names of those that were replaced."""
    if not undo.variants:
        return undo.replaced
    library = meta.graph_def.library
    restored = {f.signature.name for fs in undo.variants.values() for f in fs}
    kept: list[bytes] = []
    for function in library.function:
        variants = undo.variants.get(function.signature.name, [])
        if function.signature.name not in restored:
            kept.append(function.SerializeToString())
        kept.extend(v.SerializeToString() for v in variants)
    del library.function[:]
    library.function.extend(FunctionDef.FromString(data) for data in kept)
    return undo.replaced - restored


def _restore_metadata(draft: Draft) -> None:
    kept = draft.model.directory / KEPT
    if kept.is_file():
        draft.omit.add(KEPT)
        draft.extra_files[METADATA] = kept.read_bytes()
