"""Takes a freeze off: the plain model with effective values, and no node, capture or variable of ours left.

Works from what the graph says now, so it holds after training and saving again, with or without signatures, and after
the model was exported inside a larger one. Nothing of the model runs.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphfreeze.errors import InternalError, NoMatchError
from graphfreeze.graph.ops import CALLS
from graphfreeze.graph.refs import attr_of, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.trace import Trace, trace_meta_graph
from graphfreeze.passes.check import broken_rules
from graphfreeze.passes.keras_metadata import KEPT, METADATA
from graphfreeze.passes.marks import Marks, has_marks, read_marks
from graphfreeze.passes.prune import remove_unreachable
from graphfreeze.passes.saved_graph import update_saved_graph
from graphfreeze.passes.undo_calls import Change
from graphfreeze.passes.undo_functions import Undo
from graphfreeze.passes.undo_objects import undo_objects
from graphfreeze.passes.undo_saver import undo_saver
from graphfreeze.planning import Options, Task
from graphfreeze.savedmodel import Draft, StoredTensor, recompute_keys, unused_bytes
from graphfreeze.savedmodel.protos import FunctionDef, MetaGraphDef, NodeDef
from graphfreeze.selection import Copy, Region, Strategy


@dataclass(frozen=True, slots=True)
class Finalized:
    """What ``finalize`` did: the variables whose freeze was lifted, and warnings."""

    variables: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    out: str = ""


def is_rewritten(draft: Draft) -> bool:
    """Whether a model carries a freeze."""
    return any(has_marks(meta) for meta in draft.model.proto.meta_graphs)


def frozen_regions(draft: Draft) -> dict[str, Region]:
    """Path of each frozen variable in the finalized model -> its frozen elements."""
    found: dict[str, Region] = {}
    for meta in draft.model.proto.meta_graphs:
        if has_marks(meta):
            trace = trace_meta_graph(draft, meta)
            marks = read_marks(draft, meta, trace)
            for frozen in marks.frozen:
                # Without info the model is another one, and the source's paths mean nothing in it.
                path = frozen.fact.path if marks.info else trace.variables[frozen.variable].path
                found[path] = frozen.region
    return found


def finalize_draft(draft: Draft) -> Finalized:
    """Takes the whole freeze off.

    Raises:
        UnsupportedModelError: marks of a newer version, or a node of the user's uses what has to go.
    """
    lifted: list[str] = []
    for meta in draft.model.proto.meta_graphs:
        if not has_marks(meta):
            continue
        before = set(broken_rules(meta))
        trace = trace_meta_graph(draft, meta)
        marks = read_marks(draft, meta, trace)
        lifted += [trace.variables[f.variable].name for f in marks.frozen]
        _restore_values(draft, trace, marks)
        _restore_graphs(draft, meta, trace, marks)
        for rule, place in broken_rules(meta):
            if (rule, place) not in before:
                raise InternalError(
                    f"finalize broke the rule '{rule}': {place}. This is a bug in graphfreeze; please report it"
                )
    _restore_metadata(draft)
    if draft.model.bundle is not None and unused_bytes(draft.model.bundle, draft.drop | set(draft.put)) > 0:
        draft.repack = True
    return Finalized(tuple(lifted))


def _restore_values(draft: Draft, trace: Trace, marks: Marks) -> None:
    """Writes effective values over the bases, where they differ from what is stored."""
    for frozen in marks.frozen:
        key = trace.variables[frozen.variable].key
        held = [(h, frozen.storages[h.role]) for h in frozen.fact.held if h.role is not None]
        if key is None or not held:
            continue
        stored = draft.tensor(key)
        value = stored
        for entry, storage in held:
            source = trace.variables[storage].key
            if source is None:
                raise InternalError(f"no stored value for '{trace.variables[storage].name}'")
            value = entry.region.put(value, draft.tensor(source))
        if value.tobytes() != stored.tobytes():
            draft.put[key] = np.asarray(value, order="C")
    draft.drop |= {k for v in marks.ours if (k := trace.variables[v].key) is not None}


def _restore_graphs(draft: Draft, meta: MetaGraphDef, trace: Trace, marks: Marks) -> None:
    main = Scope(meta.graph_def)
    handles = {h for v in marks.ours for h in trace.variables[v].handles}
    changes = _root_changes(meta, trace, marks)
    before = copy.deepcopy(draft.bundle_graph)
    undo_objects(meta, draft.bundle_graph, trace, marks)
    renamed: dict[str, str] = {}
    if draft.bundle_graph is not None and marks.saved_again:
        # Keys are paths: TensorFlow counted them on the graph with our variables in it.
        renamed = recompute_keys(draft.bundle_graph)
        moved = {new: draft.put.get(old, StoredTensor(old)) for old, new in renamed.items()}
        for old in renamed:
            draft.put.pop(old, None)
        draft.put |= moved
        draft.drop |= set(renamed)
    saver = undo_saver(meta, handles, renamed)
    update_saved_graph(meta, before, draft.bundle_graph, renamed)
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    undo = Undo(functions)
    savers = set(saver.values())
    for node in main.node_list:
        if node.op in CALLS and attr_of(node, "f").func.name not in savers:
            undo.undo_call(main, node, handles)
    names = {name: undo.build(name, change) for name, change in changes.items()}
    _rename_concrete(meta, names)
    replaced = _place(meta, undo)
    _remove_handles(meta, handles)
    remove_unreachable(meta, replaced | ({marks.info_function} if marks.info_function else set()))


def _root_changes(meta: MetaGraphDef, trace: Trace, marks: Marks) -> dict[str, Change]:
    """For each concrete function, the arguments that are bound to variables of ours."""
    ours = {trace.variables[v].node_id for v in marks.ours}
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    changes: dict[str, Change] = {}
    for name, concrete in meta.object_graph_def.concrete_functions.items():
        if name in functions and name != marks.info_function:
            first = len(functions[name].signature.input_arg) - len(concrete.bound_inputs)
            dropped = frozenset(first + i for i, n in enumerate(concrete.bound_inputs) if n in ours)
            changes[name] = Change(dropped)
    return changes


def _rename_concrete(meta: MetaGraphDef, names: dict[str, str]) -> None:
    graph = meta.object_graph_def
    for old, new in names.items():
        if old == new:
            continue
        graph.concrete_functions[new].CopyFrom(graph.concrete_functions[old])
        del graph.concrete_functions[old]
    for node in graph.nodes:
        match node.WhichOneof("kind"):
            case "function":
                node.function.concrete_functions[:] = [names.get(n, n) for n in node.function.concrete_functions]
            case "bare_concrete_function":
                old = node.bare_concrete_function.concrete_function_name
                node.bare_concrete_function.concrete_function_name = names.get(old, old)
            case "captured_tensor":
                _restore_captured(meta, node.captured_tensor, names)
    for gradient in meta.graph_def.library.registered_gradients:
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)


def _restore_captured(meta: MetaGraphDef, captured: object, names: dict[str, str]) -> None:
    """A captured tensor that a merge took over is the raw one again; its function still has the marks here."""
    from graphfreeze.graph.attrs import REPLACES

    old = captured.concrete_function  # type: ignore[attr-defined]
    for function in meta.graph_def.library.function:
        if function.signature.name == old:
            for node in function.node_def:
                if node.name == captured.name.split(":")[0] and REPLACES in node.attr:  # type: ignore[attr-defined]
                    raw = node.attr[REPLACES].s.decode()
                    captured.name = f"{producer(raw)}:{raw.rsplit(':', 1)[-1]}"  # type: ignore[attr-defined]
    captured.concrete_function = names.get(old, old)  # type: ignore[attr-defined]


def _place(meta: MetaGraphDef, undo: Undo) -> set[str]:
    """Puts restored functions where the changed ones stood; returns the names of those that were replaced."""
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


def _remove_handles(meta: MetaGraphDef, handles: set[str]) -> None:
    """Removes our VarHandleOps, and reads of them that serve nothing else."""
    nodes = meta.graph_def.node
    gone = handles | {n.name for n in nodes if n.input and all(producer(i) in handles for i in n.input)}
    kept = [n.SerializeToString() for n in nodes if n.name not in gone]
    if len(kept) != len(nodes):
        del nodes[:]
        nodes.extend(NodeDef.FromString(data) for data in kept)


def _restore_metadata(draft: Draft) -> None:
    kept = draft.model.directory / KEPT
    if kept.is_file():
        draft.omit.add(KEPT)
        draft.extra_files[METADATA] = kept.read_bytes()


def matching(globs: Sequence[str], draft: Draft) -> set[str]:
    """Object paths of the frozen variables that globs name.

    Raises:
        NoMatchError: a glob names none.
    """
    from graphfreeze.selection import parse_selector

    names: dict[str, tuple[str, ...]] = {}
    for meta in draft.model.proto.meta_graphs:
        trace = trace_meta_graph(draft, meta)
        for frozen in read_marks(draft, meta, trace).frozen:
            variable = trace.variables[frozen.variable]
            names[variable.path] = (variable.path, variable.name)
    found: set[str] = set()
    for glob in globs:
        target = parse_selector(glob).target
        hits = {path for path, known in names.items() if any(target.matches(n) for n in known)}
        if not hits:
            listed = ", ".join(f"'{n}'" for _, n in list(names.values())[:5])
            raise NoMatchError(f"No frozen variable matches '{glob}'. Frozen are: {listed}")
        found |= hits
    return found


def refreeze_task(draft: Draft, held: dict[str, Region]) -> Task:
    """What to plan to put a part of a freeze back on, as it was made."""
    facts = [
        f.fact
        for meta in draft.model.proto.meta_graphs
        if has_marks(meta)
        for f in read_marks(draft, meta, trace_meta_graph(draft, meta)).frozen
    ]
    live = any(f.copy == Copy.LIVE for f in facts)
    options = Options(
        strategy=Strategy.MASK if live else Strategy.AUTO,
        copy=Copy.LIVE if live else Copy.SNAPSHOT,
        strict=any(f.strict for f in facts),
        allow_empty=True,
    )
    return Task("rewrite", options=options, held=held)
