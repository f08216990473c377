"""Takes training steps that ``train-step`` added out of a model, before a freeze is taken off.

They are recognised by what hangs under ``graphfreeze/train_step`` (in a TF1 graph by a constant of that name), so a
model that was trained through them and saved again loses them too. A signature of the same name that the user saved
later goes as well: it stands where ours stood.
"""

from __future__ import annotations

import base64
import copy
import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.attrs import ADDED, attr_bytes
from graphfreeze.graph.refs import producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.steps import CHILD, FUNCTIONS, INFO_NODE, ROLE, STATE, STEPS
from graphfreeze.graph.tf1 import is_variable_collection
from graphfreeze.graph.variables import is_tf2
from graphfreeze.passes.prune import called_functions, remove_unreachable
from graphfreeze.passes.saved_graph import update_saved_graph
from graphfreeze.passes.tf1_undo import dependent
from graphfreeze.passes.tf1_undo_saver import drop_restored, drop_saved
from graphfreeze.passes.undo_nodes import keep_nodes, remove_handles
from graphfreeze.passes.undo_objects import hanging, remove_functions, remove_nodes
from graphfreeze.passes.undo_ops import restore_ops, used_ops
from graphfreeze.passes.undo_saver import undo_saver
from graphfreeze.passes.undo_signature import remove_entries
from graphfreeze.savedmodel import Draft, children, match_nodes, refresh_checkpoint_values, variable_keys
from graphfreeze.savedmodel.protos import Message, MetaGraphDef, NodeDef, SaverDef, VariableDef

_CALL = "StatefulPartitionedCall"
_COUNTED = re.compile(rf"{_CALL}(?:_(\d+))?")
_GRADIENT = "_gradient_op_type"
_SCOPE = f"{CHILD}/{STEPS}/"


def has_steps(meta: MetaGraphDef) -> bool:
    """Whether ``train-step`` added something to a meta graph."""
    if is_tf2(meta):
        return any(True for _ in _holders(meta.object_graph_def))
    return any(True for _ in _infos(meta))


def carries_steps(draft: Draft) -> bool:
    """Whether ``train-step`` added something to a model."""
    return any(has_steps(meta) for meta in draft.model.proto.meta_graphs)


def take_steps_off(draft: Draft, meta: MetaGraphDef) -> tuple[str, ...]:
    """Takes them out; returns the names of the signatures that went.

    Raises:
        UnsupportedModelError: what was noted about them cannot be read.
    """
    ops = used_ops(meta)
    gone = (_objects_off if is_tf2(meta) else _graph_off)(draft, meta)
    if gone:
        restore_ops(meta, ops, ())
        draft.repack = True
    return gone


def _holders(graph: Message) -> Iterator[tuple[int, int]]:
    """(child ``graphfreeze``, its child ``train_step``)."""
    for node in graph.nodes:
        for child in node.children:
            if child.local_name == CHILD:
                steps = children(graph, child.node_id).get(STEPS)
                if steps is not None and {FUNCTIONS, STATE} <= children(graph, steps).keys():
                    yield child.node_id, steps


def _objects_off(draft: Draft, meta: MetaGraphDef) -> tuple[str, ...]:
    graph = meta.object_graph_def
    holders = list(_holders(graph))
    names = {n for _, steps in holders for n in children(graph, children(graph, steps)[FUNCTIONS])}
    state = {n for _, steps in holders for n in children(graph, children(graph, steps)[STATE]).values()}
    signatures = children(graph, children(graph, 0).get("signatures", 0))
    top = {steps for _, steps in holders} | {n for k, n in signatures.items() if k in names and k in meta.signature_def}
    top |= {h for h, _ in holders if children(graph, h).keys() == {STEPS}}
    if not holders:
        return ()
    functions = _functions_under(meta, top, graph)
    before = copy.deepcopy(draft.bundle_graph)
    if draft.bundle_graph is not None:
        keys = variable_keys(graph, draft.bundle_graph)
        draft.drop |= {keys[n] for n in state if n in keys} & draft.keys()
        matched = match_nodes(graph, draft.bundle_graph)
        _remove(
            draft.bundle_graph, {matched[n] for n in top if n in matched}, {matched[n] for n in state if n in matched}
        )
        refresh_checkpoint_values(draft.bundle_graph)
    gone, handles = {n for n in names if n in meta.signature_def}, _state_handles(meta)
    functions |= _gradients_off(meta, functions)
    _remove(graph, top, state)
    undo_saver(meta, handles, {})
    update_saved_graph(meta, before, draft.bundle_graph)
    main = Scope(meta.graph_def)
    _remove_calls(main, meta, gone)
    remove_handles(main, handles)
    for name in gone:
        del meta.signature_def[name]
    _count_calls_anew(main, meta)
    remove_unreachable(meta, functions)
    return tuple(sorted(names))


def _functions_under(meta: MetaGraphDef, top: Collection[int], graph: Message) -> set[str]:
    """Every function that concrete functions below some nodes lead to."""
    library = {f.signature.name: f for f in meta.graph_def.library.function}
    pending = list(top)
    seen: set[int] = set()
    names: list[str] = []
    while pending:
        number = pending.pop()
        if number in seen:
            continue
        seen.add(number)
        node = graph.nodes[number]
        names += [*node.function.concrete_functions]
        if node.bare_concrete_function.concrete_function_name:
            names.append(node.bare_concrete_function.concrete_function_name)
        pending += [c.node_id for c in node.children]
    found: set[str] = set()
    while names:
        name = names.pop()
        if name in library and name not in found:
            found.add(name)
            names += [n for node in library[name].node_def for n in called_functions(node)]
    return found


def _gradients_off(meta: MetaGraphDef, functions: Collection[str]) -> set[str]:
    """Removes gradients registered for ops of these functions only; returns the functions that computed them."""
    library = meta.graph_def.library
    own = {g.gradient_func for g in library.registered_gradients}
    needed = {
        attr_bytes(node, _GRADIENT).decode()
        for f in library.function
        if f.signature.name not in functions and f.signature.name not in own
        for node in f.node_def
    }
    gone = [i for i, g in enumerate(library.registered_gradients) if g.registered_op_type not in needed]
    names = {library.registered_gradients[i].gradient_func for i in gone}
    remove_entries(library.registered_gradients, gone)
    for name in names & meta.object_graph_def.concrete_functions.keys():
        del meta.object_graph_def.concrete_functions[name]
    return names


def _remove(graph: Message, top: Collection[int], state: Collection[int]) -> None:
    gone = set(state) | hanging(graph, top, state)
    concrete = getattr(graph, "concrete_functions", {})
    if concrete:
        used = {n for c in concrete.values() for n in c.bound_inputs}
        for name in {graph.nodes[n].bare_concrete_function.concrete_function_name for n in gone} & concrete.keys():
            del concrete[name]
        remove_functions(graph, gone)
        still = {n for c in concrete.values() for n in c.bound_inputs}
        # Constants that only the steps captured hang nowhere else.
        gone |= {n for n in used - still if graph.nodes[n].WhichOneof("kind") == "constant"}
    moved = remove_nodes(graph, gone, in_order=True)
    for one in concrete.values():
        one.bound_inputs[:] = [moved[n] for n in one.bound_inputs if n in moved]


def _state_handles(meta: MetaGraphDef) -> set[str]:
    return {
        n.name
        for n in meta.graph_def.node
        if n.op == "VarHandleOp" and n.attr["shared_name"].s.decode().startswith(_SCOPE)
    }


def _remove_calls(main: Scope, meta: MetaGraphDef, names: Collection[str]) -> None:
    """The calls of signatures that go, and what only those take."""
    gone = {producer(info.name) for name in names for info in meta.signature_def[name].outputs.values()}
    gone |= {producer(info.name) for name in names for info in meta.signature_def[name].inputs.values()}
    pending = list(gone)
    while pending:
        node = main.nodes.get(pending.pop())
        for text in () if node is None else node.input:
            source = main.nodes[producer(text)]
            if source.name not in gone and source.op in ("Const", "Placeholder", "Identity", "NoOp"):
                users = {n.name for n in main.node_list if any(producer(t) == source.name for t in n.input)}
                if users <= gone:
                    gone.add(source.name)
                    pending.append(source.name)
    keep_nodes(main, [n for n in main.node_list if n.name not in gone])


def _count_calls_anew(main: Scope, meta: MetaGraphDef) -> None:
    """TensorFlow counts the calls of the main graph, those of the saver last."""
    calls = {int(m[1] or 0): n for n in main.node_list if (m := _COUNTED.fullmatch(n.name))}
    names = {calls[number].name: _CALL + (f"_{i}" if i else "") for i, number in enumerate(sorted(calls))}
    for node in main.node_list:
        node.name = names.get(node.name, node.name)
        for i, text in enumerate(node.input):
            if producer(text) in names:
                node.input[i] = text.replace(producer(text), names[producer(text)], 1)
    infos = [info for s in meta.signature_def.values() for info in s.outputs.values()]
    for info in infos:
        info.name = _renamed(info.name, names)
    meta.saver_def.restore_op_name = _renamed(meta.saver_def.restore_op_name, names)
    meta.saver_def.save_tensor_name = _renamed(meta.saver_def.save_tensor_name, names)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    name = producer(text)
    return names.get(name, name) + text.removeprefix(name)


def _infos(meta: MetaGraphDef) -> Iterator[NodeDef]:
    for node in meta.graph_def.node:
        if node.op == "Const" and attr_bytes(node, ADDED) == ROLE:
            yield node


def _graph_off(draft: Draft, meta: MetaGraphDef) -> tuple[str, ...]:
    names: list[str] = []
    for info in list(_infos(meta)):
        prefix, noted = _noted(info)
        names += noted["signatures"]
        scope = Scope(meta.graph_def)
        gone = {prefix + name for name in noted["nodes"]} & set(scope.nodes)
        gone |= {n.name for n in scope.node_list if n.name.startswith(prefix + _SCOPE)}
        gone |= dependent(scope, gone, set())
        gone |= drop_restored(scope, gone)
        drop_saved(scope, gone)
        _changed_back(scope, prefix, noted["changed"])
        keep_nodes(scope, [_without(n, gone) for n in scope.node_list if n.name not in gone])
        _collections_back(meta, gone, prefix, noted["collections"])
        if producer(meta.saver_def.restore_op_name) in gone:
            meta.saver_def.CopyFrom(SaverDef.FromString(base64.b64decode(noted["saver"])))
        for name in [k for k, s in meta.signature_def.items() if _touches(s, gone)]:
            del meta.signature_def[name]
        draft.drop |= {k for key in noted["keys"] for k in (key, prefix + key)} & draft.keys()
        remove_unreachable(meta, set(noted["functions"]))
    return tuple(sorted(set(names)))


def _noted(info: NodeDef) -> tuple[str, dict[str, Any]]:
    """The name scope that the graph was imported into since, and what was noted."""
    try:
        noted: dict[str, Any] = json.loads(info.attr["value"].tensor.string_val[0])
        if noted["format"] == 1:
            return info.name.rpartition(INFO_NODE)[0], noted
    except (ValueError, IndexError, KeyError, TypeError):
        pass
    raise UnsupportedModelError(
        f"Node '{info.name}' should say which training steps graphfreeze added, in format 1, and does not. Start from "
        "the model that they were added to"
    )


def _changed_back(scope: Scope, prefix: str, changed: Mapping[str, str]) -> None:
    for name, text in changed.items():
        node = scope.nodes.get(prefix + name)
        if node is not None:
            was = NodeDef.FromString(base64.b64decode(text))
            mark = "^" if prefix else ""
            inputs = [f"^{prefix}{t[1:]}" if t.startswith("^") and mark else f"{prefix}{t}" for t in was.input]
            del node.input[:]
            node.input.extend(inputs)


def _without(node: NodeDef, gone: Collection[str]) -> NodeDef:
    """The node without control inputs from what goes, and not placed beside it."""
    inputs = [t for t in node.input if not (t.startswith("^") and producer(t) in gone)]
    if len(inputs) != len(node.input):
        del node.input[:]
        node.input.extend(inputs)
    return node


def _collections_back(meta: MetaGraphDef, gone: Collection[str], prefix: str, noted: Mapping[str, str | None]) -> None:
    for name, collection in list(meta.collection_def.items()):
        was = noted.get(name)
        if is_variable_collection(name):
            values = collection.bytes_list.value
            kept = [v for v in values if producer(VariableDef.FromString(v).variable_name) not in gone]
            if len(kept) != len(values):
                values[:] = kept
            empty = not kept
        elif collection.WhichOneof("kind") == "node_list":
            nodes = collection.node_list.value
            left = [n for n in nodes if producer(n) not in gone]
            if len(left) != len(nodes):
                nodes[:] = left
            empty = not left
        elif was is not None and not prefix:
            collection.ParseFromString(base64.b64decode(was))
            continue
        else:
            empty = name in noted and not prefix
        if empty and name in noted and was is None:
            del meta.collection_def[name]


def _touches(signature: Message, gone: Collection[str]) -> bool:
    infos = (*signature.inputs.values(), *signature.outputs.values())
    return any(producer(info.name) in gone for info in infos)
