"""The variables of a meta graph, under one identity each, wherever TensorFlow wrote them down.

A TF2 SavedModel names a variable four times: as a node of the object graph, as a VarHandleOp of the main graph, as a
key of the checkpoint and as an argument of functions. Node names are not identities (two variables may be called
``Variable``); (container, shared_name) is, and the saver functions say which handle belongs to which key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from graphfreeze.graph.refs import attr_of, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.tf1 import REF_VARIABLES, optimizer_variables, variable_defs
from graphfreeze.savedmodel import DTYPE_NAMES, Draft, object_paths, slot_variables, variable_keys
from graphfreeze.savedmodel.protos import MetaGraphDef, VariableDef

_COPIES = "_all_variables/"
_TRAINED = "_trainable_variables"
"""What a Keras optimizer calls the weights that it updates."""
_STATE_OBJECTS = ("_tf_keras_metric", "optimizer", "loss_scale")


@dataclass(frozen=True, slots=True)
class Part:
    """The place of a variable in the partitioned variable whose part it is; the checkpoint holds the whole."""

    whole: str
    whole_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def index(self) -> tuple[slice, ...]:
        """The part as a numpy index of the whole."""
        return tuple(slice(o, o + n) for o, n in zip(self.offset, self.shape, strict=True))


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable. ``shape`` is None where it is not known statically."""

    index: int
    name: str
    path: str
    key: str | None
    dtype: str
    shape: tuple[int, ...] | None
    trainable: bool
    node_id: int | None
    """Its node in the object graph; None in a TF1 graph."""
    handles: tuple[str, ...]
    """Nodes of the main graph that hold it, several where aliases share a name."""
    is_state: bool = False
    """True where the object graph says that it belongs to an optimizer, a metric or a loss scale."""
    copies: tuple[int, ...] = ()
    """Object-graph nodes of unused copies: Keras 3 writes every variable a second time under ``_all_variables``."""
    part: Part | None = None
    """Of a partitioned TF1 variable."""
    is_ref: bool = False
    """Whether it is a TF1 ref variable, which only a Session can train."""

    @property
    def label(self) -> str:
        """The name that selects it: of a part, that of the whole."""
        return self.name if self.part is None else self.part.whole

    @property
    def elements(self) -> int:
        """Number of elements, 0 where the shape is unknown."""
        return 0 if self.shape is None else prod(self.shape)


def static_shape(proto: Any) -> tuple[int, ...] | None:
    """A TensorShapeProto as a tuple; None where rank or a dimension is unknown."""
    if proto.unknown_rank or any(d.size < 0 for d in proto.dim):
        return None
    return tuple(d.size for d in proto.dim)


def is_tf2(meta: MetaGraphDef) -> bool:
    """True for a meta graph with an object graph, that is, written by ``tf.saved_model.save``."""
    return len(meta.object_graph_def.nodes) > 0


def find_variables(draft: Draft, meta: MetaGraphDef) -> tuple[Variable, ...]:
    """All variables: in the order of the object graph, or in a TF1 graph in that of its nodes."""
    return _object_variables(draft, meta) if is_tf2(meta) else _graph_variables(draft, meta)


def _object_variables(draft: Draft, meta: MetaGraphDef) -> tuple[Variable, ...]:
    graph = meta.object_graph_def
    bundle_graph = draft.bundle_graph
    keys = {} if bundle_graph is None else variable_keys(graph, bundle_graph)
    paths = object_paths(graph)
    handles = _handles_by_node(meta, keys)
    state = _state_nodes(graph)
    found: list[Variable] = []
    for node_id, node in enumerate(graph.nodes):
        if node.WhichOneof("kind") != "variable":
            continue
        proto = node.variable
        key = keys.get(node_id)
        found.append(
            Variable(
                index=len(found),
                name=proto.name.removesuffix(":0"),
                path=paths.get(node_id, f"#{node_id}"),
                key=key,
                dtype=DTYPE_NAMES[proto.dtype],
                shape=static_shape(proto.shape) or _stored_shape(draft, key, proto.shape),
                trainable=proto.trainable,
                node_id=node_id,
                handles=handles.get(node_id, ()),
                is_state=node_id in state,
            )
        )
    return _fold_copies(graph, found, _handles_by_signature(meta, Scope(meta.graph_def)))


def _fold_copies(graph: Any, found: list[Variable], in_signatures: dict[int, str]) -> tuple[Variable, ...]:
    """Joins Keras 3's second copies to their variables.

    The object graph's functions are bound to ``variables/N``, the main graph's signatures to the handle that is saved
    as ``_all_variables/N``; both are one variable to whoever wrote the model. Where no signature uses a variable, its
    copy is the one of its name, unless several have that name.
    """
    bound = {n for c in graph.concrete_functions.values() for n in c.bound_inputs}
    copies = [v for v in found if v.path.startswith(_COPIES) and v.node_id not in bound]
    kept = [v for v in found if v not in copies]
    named = Counter(v.name for v in kept)
    joined: list[Variable] = []
    for variable in kept:
        own = [c for c in copies if in_signatures.get(variable.node_id or 0) in c.handles]
        if not own and named[variable.name] == 1:
            same = (variable.name, variable.dtype, variable.shape)
            own = [c for c in copies if (c.name, c.dtype, c.shape) == same]
        copies = [c for c in copies if c not in own]
        if own:
            handles = variable.handles + tuple(h for c in own for h in c.handles)
            variable = replace(variable, handles=handles, copies=tuple(c.node_id or 0 for c in own))
        joined.append(variable)
    joined.extend(copies)
    return tuple(v if v.index == i else replace(v, index=i) for i, v in enumerate(joined))


def _stored_shape(draft: Draft, key: str | None, proto: Any) -> tuple[int, ...] | None:
    static = static_shape(proto)
    if static is not None or key is None or key not in draft.keys():  # noqa: SIM118 (a Draft is no mapping)
        return static
    return draft.shape(key)


def _state_nodes(graph: Any) -> set[int]:
    """Slots, and everything below an optimizer, a metric or a loss scale."""
    state = {slot.slot for slot in slot_variables(graph)}
    pending = [
        i
        for i, node in enumerate(graph.nodes)
        if node.WhichOneof("kind") == "user_object"
        and (node.user_object.identifier in _STATE_OBJECTS or _is_keras_optimizer(node))
    ]
    owned: set[int] = set()
    while pending:
        current = pending.pop()
        if current in owned:
            continue
        owned.add(current)
        for child in graph.nodes[current].children:
            if child.local_name == _TRAINED:
                continue
            # A child that trains is a weight that the optimizer merely refers to.
            target = graph.nodes[child.node_id]
            if target.WhichOneof("kind") == "variable" and target.variable.trainable:
                continue
            pending.append(child.node_id)
    return state | owned


def _is_keras_optimizer(node: Any) -> bool:
    """Keras 3 saves its optimizers as plain objects; their attributes tell them (keras/src/optimizers)."""
    return {child.local_name for child in node.children} >= {"_iterations", "_learning_rate", _TRAINED}


def _handles_by_node(meta: MetaGraphDef, keys: dict[int, str]) -> dict[int, tuple[str, ...]]:
    """Object-graph node -> VarHandleOps, through the saver, the bound inputs, and only then the names."""
    scope = Scope(meta.graph_def)
    identities: dict[str, list[str]] = {}
    for node in scope.node_list:
        if node.op == "VarHandleOp":
            identities.setdefault(_identity(node), []).append(node.name)
    by_key = _handles_by_key(meta, scope)
    found: dict[int, str] = {n: by_key[key] for n, key in keys.items() if key in by_key}
    for node_id, handle in _handles_by_signature(meta, scope).items():
        found.setdefault(node_id, handle)
    _add_by_name(meta, identities, found)
    return {n: tuple(identities[_identity(scope.nodes[h])]) for n, h in found.items()}


def _identity(node: Any) -> str:
    shared = attr_of(node, "shared_name").s.decode() or node.name
    return f"{attr_of(node, 'container').s.decode()}\0{shared}"


def _add_by_name(meta: MetaGraphDef, identities: dict[str, list[str]], found: dict[int, str]) -> None:
    names = Counter(n.variable.name for n in meta.object_graph_def.nodes if n.WhichOneof("kind") == "variable")
    taken = set(found.values())
    for node_id, node in enumerate(meta.object_graph_def.nodes):
        if node.WhichOneof("kind") != "variable" or node_id in found or names[node.variable.name] > 1:
            continue
        for handle in identities.get(f"\0{node.variable.name}", ())[:1]:
            if handle not in taken:
                found[node_id] = handle


def _handles_by_key(meta: MetaGraphDef, scope: Scope) -> dict[str, str]:
    """Checkpoint key -> VarHandleOp, read off the function that restores."""
    call = scope.nodes.get(meta.saver_def.restore_op_name.split(":")[0])
    if call is None or "f" not in call.attr:
        return {}
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    body = functions.get(call.attr["f"].func.name)
    if body is None:
        return {}
    inner = Scope(body)
    position = {name: i for i, name in enumerate(inner.arguments)}
    inputs = scope.data_inputs(call)
    found: dict[str, str] = {}
    for assign in inner.node_list:
        if assign.op != "AssignVariableOp" or assign.input[0] not in position:
            continue
        key = restored_key(inner, assign.input[1])
        source = scope.nodes.get(inputs[position[assign.input[0]]].split(":")[0])
        if key is not None and source is not None and source.op == "VarHandleOp":
            found[key] = source.name
    return found


def restored_key(scope: Scope, ref: str) -> str | None:
    """The checkpoint key that a tensor of a restore function comes from, through Identity and Cast."""
    parts = ref.split(":")
    node = scope.nodes.get(parts[0])
    while node is not None and node.op in ("Identity", "Cast", "Reshape"):
        parts = node.input[0].split(":")
        node = scope.nodes.get(parts[0])
    if node is None or node.op != "RestoreV2":
        return None
    names = string_constant(scope, node.input[1])
    index = int(parts[-1]) if len(parts) > 1 else 0
    return names[index].decode() if index < len(names) else None


def string_constant(scope: Scope, ref: str) -> Sequence[bytes]:
    """The values of a string Const; a single value may stand for a whole filled tensor."""
    node = scope.nodes.get(ref.split(":")[0])
    return node.attr["value"].tensor.string_val if node is not None and node.op == "Const" else []


def _handles_by_signature(meta: MetaGraphDef, scope: Scope) -> dict[int, str]:
    """Object-graph node -> VarHandleOp, from the calls of concrete functions in the main graph."""
    concrete = meta.object_graph_def.concrete_functions
    found: dict[int, str] = {}
    for call in scope.node_list:
        name = call.attr["f"].func.name if "f" in call.attr else ""
        if name not in concrete:
            continue
        bound = list(concrete[name].bound_inputs)
        inputs = scope.data_inputs(call)
        for node_id, text in zip(bound, inputs[len(inputs) - len(bound) :], strict=False):
            source = scope.nodes.get(text.split(":")[0])
            if source is not None and source.op == "VarHandleOp":
                found[node_id] = source.name
    return found


def _graph_variables(draft: Draft, meta: MetaGraphDef) -> tuple[Variable, ...]:
    """The variables of a TF1 graph: its variable ops, with what the collections say of them.

    Meta graphs share their weights, and one for serving may have lost its collections: what one of them trains, all
    hold to be trainable.
    """
    metas = [m for m in draft.model.proto.meta_graphs if not is_tf2(m)]
    trainable = {producer(d.variable_name) for m in metas for d in _variable_defs(m, "trainable_variables")}
    parts = {producer(d.variable_name): _part(d) for d in variable_defs(meta) if d.HasField("save_slice_info_def")}
    state = optimizer_variables(meta)
    found: dict[str, Variable] = {}
    stored = draft.keys()
    for node in meta.graph_def.node:
        if node.op not in (*REF_VARIABLES, "VarHandleOp"):
            continue
        identity = _identity(node)
        if identity in found:
            found[identity] = replace(found[identity], handles=(*found[identity].handles, node.name))
            continue
        name = attr_of(node, "shared_name").s.decode() or node.name
        part = parts.get(node.name)
        if name not in stored and node.name in stored:
            name = node.name  # imported into a name scope: a Saver goes by nodes
        key = next((k for k in ((part.whole,) if part else ()) + (name,) if k in stored), None)
        shape = static_shape(attr_of(node, "shape").shape)
        if part is None or key != part.whole:
            part, shape = None, shape or _stored_shape(draft, key, attr_of(node, "shape").shape)
        trains = node.name in trainable or name in trainable
        found[identity] = Variable(
            index=len(found),
            name=name,
            path=name,
            key=key,
            dtype=DTYPE_NAMES[attr_of(node, "dtype").type],
            shape=shape if part is None else part.shape,
            trainable=trains,
            node_id=None,
            handles=(node.name,),
            is_state=node.name in state and not trains,
            part=part,
            is_ref=node.op in REF_VARIABLES,
        )
    return tuple(found.values())


def _part(described: VariableDef) -> Part:
    info = described.save_slice_info_def
    return Part(info.full_name, tuple(info.full_shape), tuple(info.var_offset), tuple(info.var_shape))


def _variable_defs(meta: MetaGraphDef, collection: str) -> list[Any]:
    if collection not in meta.collection_def:
        return []
    return [VariableDef.FromString(value) for value in meta.collection_def[collection].bytes_list.value]


def is_float(dtype: str) -> bool:
    """True for the dtypes that gradients flow through: floating point and complex."""
    return dtype.startswith(("float", "bfloat", "complex", "half", "double"))


def element_bytes(dtype: str) -> int:
    """Bytes per element; 0 for strings and handles."""
    if dtype == "bfloat16":
        return 2
    try:
        return np.dtype(dtype).itemsize
    except TypeError:
        return 0
