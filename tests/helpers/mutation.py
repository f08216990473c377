"""Mutants of a rewritten model: every change that the rewriter made is undone or spoiled, one at a time.

The list comes from comparing the rewritten protos with the original ones, so a new kind of change is found without a
line here where it is an edge, a capture, a flag or a name. A mutant that no check notices is a hole in the checks or a
change that the rewriter need not make.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphfreeze.graph.attrs import ADDED, ORIGIN, tensor_attr, tensor_value
from graphfreeze.graph.ops import CALLS
from graphfreeze.graph.refs import is_control, producer
from graphfreeze.graph.trace import trace_meta_graph
from graphfreeze.savedmodel import DTYPE_NAMES, NUMPY_DTYPES, open_draft, read_saved_model
from graphfreeze.savedmodel.protos import FunctionDef, Message, MetaGraphDef, NodeDef

Change = Callable[[MetaGraphDef], None]
Handles = dict[str, str]
"""Handles of variables, and their dtypes."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change, by kind and place."""

    kind: str
    place: str
    change: Change

    def __str__(self) -> str:
        return f"{self.kind}: {self.place}"


def mutants(source: Path, rewritten: Path) -> list[Mutant]:
    """Every mutant of a rewritten model, in a fixed order."""
    before, after = (read_saved_model(p).proto.meta_graphs[0] for p in (source, rewritten))
    return [
        *_in_functions(before, after, _dtypes(rewritten)),
        *_in_main_graph(before, after),
        *_in_objects(before, after),
        *_in_saver(after),
    ]


def write_mutant(rewritten: Path, target: Path, mutant: Mutant) -> None:
    """The rewritten model with the change, its weights hard-linked."""
    shutil.copytree(rewritten, target, copy_function=os.link)
    proto = read_saved_model(rewritten).proto
    meta = proto.meta_graphs[0]
    untouched = copy.deepcopy(meta)
    mutant.change(meta)
    assert meta != untouched, f"{mutant} changes nothing"
    (target / "saved_model.pb").unlink()
    (target / "saved_model.pb").write_bytes(proto.SerializeToString(deterministic=True))


# Functions


def _library(meta: MetaGraphDef) -> dict[str, FunctionDef]:
    return {f.signature.name: f for f in meta.graph_def.library.function}


def _dtypes(rewritten: Path) -> dict[str, Handles]:
    """By function, the dtypes of the variables that its arguments are handles of."""
    draft = open_draft(rewritten)
    meta = draft.model.proto.meta_graphs[0]
    trace, functions = trace_meta_graph(draft, meta), _library(meta)
    found: dict[str, Handles] = defaultdict(dict)
    for key in trace.bodies:
        arguments = functions[key.function].signature.input_arg
        found[key.function] |= {arguments[i].name: trace.variables[v].dtype for i, v in key.binding}
    return found


def _in_functions(before: MetaGraphDef, after: MetaGraphDef, dtypes: Mapping[str, Handles]) -> Iterator[Mutant]:
    originals = _library(before)
    for name, function in _library(after).items():
        origin = next((n.attr[ORIGIN].s for n in function.node_def if ORIGIN in n.attr), None)
        if origin is None:
            continue
        old = originals[json.loads(origin)["name"]]
        handles = dtypes.get(name, {})
        yield from _edges(name, old, function, handles)
        for node in function.node_def:
            if ADDED in node.attr:
                yield from _added_node(name, handles, node)


def _edges(name: str, old: FunctionDef, new: FunctionDef, handles: Handles) -> Iterator[Mutant]:
    """Consumers and results back to what they took, appended inputs to other handles, counts of loops back."""
    nodes = {n.name: n for n in new.node_def}
    ops = {n.name: n.op for n in old.node_def}

    def same_producer(text: str) -> bool:
        return producer(text) not in ops or nodes[producer(text)].op == ops[producer(text)]

    for node in old.node_def:
        changed = nodes[node.name]
        if changed.op != node.op or node.op == "Shape":
            # A value has the same shape before and after a merge.
            continue
        for i, (was, now) in enumerate(zip(_data(node), _data(changed), strict=False)):
            if was != now and same_producer(was):
                yield Mutant("edge", f"{name} {node.name} input {i}", _set_input(name, node.name, i, was))
        yield from _appended(name, node, changed, handles)
        if (
            "_num_original_outputs" in node.attr
            and node.attr["_num_original_outputs"] != changed.attr["_num_original_outputs"]
        ):
            count = node.attr["_num_original_outputs"].i
            yield Mutant(
                "outputs of a loop", f"{name} {node.name}", _set_int(name, node.name, "_num_original_outputs", count)
            )
    for result, was in old.ret.items():
        if new.ret[result] != was and same_producer(was):
            yield Mutant("result", f"{name} {result}", _set_result(name, result, was))


def _data(node: NodeDef) -> list[str]:
    return [text for text in node.input if not is_control(text)]


def _appended(name: str, old: NodeDef, new: NodeDef, handles: Handles) -> Iterator[Mutant]:
    """Each appended handle of a call replaced by each other one."""
    if old.op not in CALLS:
        return
    texts = _data(new)
    for i in range(len(_data(old)), len(texts)):
        for other in _others(texts[i], handles):
            yield Mutant("capture", f"{name} {new.name} input {i} = {other}", _set_input(name, new.name, i, other))


def _added_node(name: str, handles: Handles, node: NodeDef) -> Iterator[Mutant]:
    place = f"{name} {node.name}"
    if node.op == "StopGradient":
        yield Mutant("stop", place, _set_op(name, node.name, "Identity"))
    if node.op == "Const":
        yield from _constant(name, node)
    for i, text in enumerate(_data(node)):
        for other in _others(text, handles):
            yield Mutant("handle", f"{place} input {i} = {other}", _set_input(name, node.name, i, other))


def _others(handle: str, handles: Handles) -> list[str]:
    """Of the same dtype: who looks up numbers of another one ends the whole process."""
    return [other for other, dtype in handles.items() if other != handle and dtype == handles.get(handle)]


def _constant(name: str, node: NodeDef) -> Iterator[Mutant]:
    """One number of a geometry constant changed: the first and the last."""
    tensor = node.attr["value"].tensor
    if tensor.dtype not in NUMPY_DTYPES or not tensor_value(tensor).size:
        return
    for at in sorted({0, tensor_value(tensor).size - 1}):
        yield Mutant("geometry", f"{name} {node.name} [{at}]", _other_number(name, node.name, at))


# The main graph and the object graph


def _in_main_graph(before: MetaGraphDef, after: MetaGraphDef) -> Iterator[Mutant]:
    nodes = {n.name: n for n in after.graph_def.node}
    saver = {producer(after.saver_def.restore_op_name), producer(after.saver_def.save_tensor_name)}
    handles = {n.name: DTYPE_NAMES[n.attr["dtype"].type] for n in nodes.values() if n.op == "VarHandleOp"}
    for node in before.graph_def.node:
        if node.name not in saver:
            yield from _appended("", node, nodes[node.name], handles)


def _in_objects(before: MetaGraphDef, after: MetaGraphDef) -> Iterator[Mutant]:
    old, new = before.object_graph_def, after.object_graph_def
    for i, node in enumerate(new.nodes):
        was = old.nodes[i] if i < len(old.nodes) else None
        if node.WhichOneof("kind") == "variable" and (was is None or was.variable.trainable != node.variable.trainable):
            yield Mutant("flag", f"{i} {node.variable.name}", _flip(i))
        if (
            was is not None
            and was.WhichOneof("kind") == "captured_tensor"
            and was.captured_tensor.name != node.captured_tensor.name
        ):
            yield Mutant(
                "captured tensor", f"{i} {node.captured_tensor.name}", _set_captured(i, was.captured_tensor.name)
            )
        if was is not None and i and was.WhichOneof("kind") == "user_object" and was.children != node.children:
            yield Mutant("list", f"{i}", _set_children(i, was))
    variables = [i for i, n in enumerate(new.nodes) if n.WhichOneof("kind") == "variable"]
    for name, concrete in new.concrete_functions.items():
        if name in old.concrete_functions:
            continue
        appended = "info_graphfreeze" not in name
        first = len(_old_of(after, before, name).bound_inputs) if appended else 0
        for i in range(first, len(concrete.bound_inputs)):
            other = next(v for v in variables if v != concrete.bound_inputs[i])
            yield Mutant("bound input" if appended else "info", f"{name} {i} = {other}", _bind(name, i, other))


def _old_of(after: MetaGraphDef, before: MetaGraphDef, name: str) -> Message:
    origin = next(n.attr[ORIGIN].s for n in _library(after)[name].node_def if ORIGIN in n.attr)
    return before.object_graph_def.concrete_functions[json.loads(origin)["name"]]


# The saver


def _in_saver(after: MetaGraphDef) -> Iterator[Mutant]:
    nodes = {n.name: n for n in after.graph_def.node}
    for place in (after.saver_def.restore_op_name, after.saver_def.save_tensor_name):
        call = nodes.get(producer(place))
        if call is None or "f" not in call.attr:
            continue
        name = call.attr["f"].func.name
        function = _library(after)[name]
        added = [n for n in function.node_def if ADDED in n.attr]
        alike = _handles_by_dtype(function)
        for node in added:
            if node.op == "AssignVariableOp":
                yield Mutant("restore", f"{name} {node.name}", _take_out(name, node.name))
            if node.op == "ReadVariableOp":
                other = next(h for h in alike[node.attr["dtype"].type] if h != node.input[0])
                yield Mutant("save", f"{name} {node.name} = {other}", _set_input(name, node.name, 0, other))
        for node in function.node_def if added else ():
            if node.op in ("RestoreV2", "SaveV2"):
                tensor = next(n for n in function.node_def if n.name == producer(node.input[1])).attr["value"].tensor
                for i in range(len(tensor.string_val)):
                    if tensor.string_val[i].startswith(b"graphfreeze/"):
                        yield Mutant(node.op, f"{name} key {i}", _set_key(name, producer(node.input[1]), i))
                if node.op == "SaveV2":
                    yield Mutant(node.op, f"{name} last input", _drop_last(name, node.name))
        if added:
            yield Mutant("saver's call", f"{call.name}", _swap_last(call.name))


def _handles_by_dtype(function: FunctionDef) -> dict[int, list[str]]:
    """A read of another dtype may end the whole process."""
    found = defaultdict(list)
    for node in function.node_def:
        if node.op == "ReadVariableOp":
            found[node.attr["dtype"].type].append(node.input[0])
    return found


# Changes


def _nodes(meta: MetaGraphDef, function: str) -> dict[str, NodeDef]:
    if not function:
        return {n.name: n for n in meta.graph_def.node}
    return {n.name: n for n in _library(meta)[function].node_def}


def _set_input(function: str, node: str, index: int, text: str) -> Change:
    def change(meta: MetaGraphDef) -> None:
        _nodes(meta, function)[node].input[index] = text

    return change


def _set_result(function: str, result: str, text: str) -> Change:
    def change(meta: MetaGraphDef) -> None:
        _library(meta)[function].ret[result] = text

    return change


def _set_int(function: str, node: str, attr: str, value: int) -> Change:
    def change(meta: MetaGraphDef) -> None:
        _nodes(meta, function)[node].attr[attr].i = value

    return change


def _set_op(function: str, node: str, op: str) -> Change:
    def change(meta: MetaGraphDef) -> None:
        _nodes(meta, function)[node].op = op

    return change


def _other_number(function: str, node: str, at: int) -> Change:
    """One less, since one more is beyond an end as often as not; one more where it is not above zero; bits flip."""

    def change(meta: MetaGraphDef) -> None:
        attr = _nodes(meta, function)[node].attr["value"]
        values = tensor_value(attr.tensor).copy()
        one = values.reshape(-1)[at : at + 1]
        if values.dtype == np.bool_ or values.dtype == np.uint8:
            one ^= True
        else:
            one += -1 if one[0] > 0 else 1
        attr.CopyFrom(tensor_attr(values))

    return change


def _flip(number: int) -> Change:
    def change(meta: MetaGraphDef) -> None:
        variable = meta.object_graph_def.nodes[number].variable
        variable.trainable = not variable.trainable

    return change


def _set_children(number: int, was: Message) -> Change:
    def change(meta: MetaGraphDef) -> None:
        node = meta.object_graph_def.nodes[number]
        del node.children[:]
        node.children.extend(was.children)

    return change


def _set_captured(number: int, name: str) -> Change:
    def change(meta: MetaGraphDef) -> None:
        meta.object_graph_def.nodes[number].captured_tensor.name = name

    return change


def _bind(name: str, index: int, node: int) -> Change:
    def change(meta: MetaGraphDef) -> None:
        meta.object_graph_def.concrete_functions[name].bound_inputs[index] = node

    return change


def _take_out(function: str, node: str) -> Change:
    def change(meta: MetaGraphDef) -> None:
        body = _library(meta)[function]
        for other in body.node_def:
            kept = [text for text in other.input if text != f"^{node}"]
            other.input[:] = kept
        body.node_def.remove(_nodes(meta, function)[node])
        body.signature.control_output.remove(node)
        del body.control_ret[node]

    return change


def _set_key(function: str, node: str, index: int) -> Change:
    def change(meta: MetaGraphDef) -> None:
        values = _nodes(meta, function)[node].attr["value"].tensor.string_val
        values[index] = next(v for v in values if v.endswith(b"VALUE") and not v.startswith(b"graphfreeze/"))

    return change


def _drop_last(function: str, node: str) -> Change:
    def change(meta: MetaGraphDef) -> None:
        save = _nodes(meta, function)[node]
        place = max(i for i, text in enumerate(save.input) if not is_control(text))
        del save.input[place]
        save.attr["dtypes"].list.type.pop()
        for text in save.input[1:3]:
            tensor = _nodes(meta, function)[producer(text)].attr["value"].tensor
            if len(tensor.string_val) == tensor.tensor_shape.dim[0].size:
                tensor.string_val.pop()
            tensor.tensor_shape.dim[0].size -= 1

    return change


def _swap_last(call: str) -> Change:
    """The last appended handle of a saver's call replaced by the first one of a variable of its dtype."""

    def change(meta: MetaGraphDef) -> None:
        nodes = _nodes(meta, "")
        node = nodes[call]
        last = max(i for i, text in enumerate(node.input) if not is_control(text))
        dtype = nodes[producer(node.input[last])].attr["dtype"].type
        handles = [i for i, t in enumerate(node.input) if nodes[producer(t)].op == "VarHandleOp"]
        first = next(i for i in handles if nodes[producer(node.input[i])].attr["dtype"].type == dtype)
        node.input[last] = node.input[first]

    return change
