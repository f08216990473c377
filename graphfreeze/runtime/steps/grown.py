"""Puts what was added to a TF1 graph into its meta graph, and leaves all else as it was.

Importing and exporting writes every node anew, without what this TensorFlow does not know. So a node is taken from the
export only where it is new or takes another input. What had to change is kept in a string constant, from which
``finalize`` takes it back.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from graphfreeze.graph.attrs import ADDED, bytes_attr, string_tensor, type_attr
from graphfreeze.graph.refs import producer
from graphfreeze.graph.steps import INFO_NODE, ROLE
from graphfreeze.graph.tf1 import is_variable_collection
from graphfreeze.runtime.steps.names import SCOPE
from graphfreeze.savedmodel import DT_STRING
from graphfreeze.savedmodel.protos import AttrValue, MetaGraphDef, SignatureDef, VariableDef

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Grown:
    """A meta graph as TensorFlow exported it, and signatures to add."""

    exported: MetaGraphDef
    signatures: Mapping[str, SignatureDef]
    keys: Collection[str]
    """Checkpoint keys of the new variables."""


def assemble(meta: MetaGraphDef, grown: Grown) -> None:
    """Changes ``meta`` in place."""
    before = {node.name: node for node in meta.graph_def.node}
    after = grown.exported.graph_def.node
    changed = {n.name: n for n in after if n.name in before and list(n.input) != list(before[n.name].input)}
    noted: dict[str, Any] = {
        "format": FORMAT,
        "keys": sorted(grown.keys),
        "nodes": [n.name for n in after if n.name not in before and not n.name.startswith(SCOPE)],
        "changed": {name: _text(before[name]) for name in changed},
        "collections": {},
        "saver": _text(meta.saver_def),
        "signatures": list(grown.signatures),
        "functions": [],
        "ops": [],
    }
    for name, node in changed.items():
        before[name].CopyFrom(node)
    meta.graph_def.node.extend(n for n in after if n.name not in {*before})
    known = {f.signature.name for f in meta.graph_def.library.function}
    for function in grown.exported.graph_def.library.function:
        if function.signature.name not in known:
            meta.graph_def.library.function.add().CopyFrom(function)
            noted["functions"].append(function.signature.name)
    _add_ops(meta, grown.exported, noted)
    _add_collections(meta, grown.exported, noted)
    meta.saver_def.CopyFrom(grown.exported.saver_def)
    for name, data in grown.signatures.items():
        meta.signature_def[name].CopyFrom(data)
    _note(meta, noted)


def _add_ops(meta: MetaGraphDef, exported: MetaGraphDef, noted: dict[str, Any]) -> None:
    """The list of ops that a graph uses, where it has one."""
    ops = meta.meta_info_def.stripped_op_list.op
    known = {op.name for op in ops}
    if known:
        new = [op for op in exported.meta_info_def.stripped_op_list.op if op.name not in known]
        ops.extend(new)
        noted["ops"] = [op.name for op in new]


def _add_collections(meta: MetaGraphDef, exported: MetaGraphDef, noted: dict[str, Any]) -> None:
    for key, collection in exported.collection_def.items():
        if key in meta.collection_def and meta.collection_def[key] == collection:
            continue
        held = meta.collection_def.get(key)
        if is_variable_collection(key):
            names = set() if held is None else {_variable(v) for v in held.bytes_list.value}
            new = [v for v in collection.bytes_list.value if _variable(v) not in names]
            if not new:
                continue
            noted["collections"][key] = None if held is None else _text(held)
            meta.collection_def[key].bytes_list.value.extend(new)
        elif held is None or collection.WhichOneof("kind") == "node_list" or key in ("while_context", "cond_context"):
            noted["collections"][key] = None if held is None else _text(held)
            meta.collection_def[key].CopyFrom(collection)


def _variable(entry: bytes) -> str:
    return producer(VariableDef.FromString(entry).variable_name)


def _note(meta: MetaGraphDef, noted: dict[str, Any]) -> None:
    node = meta.graph_def.node.add(name=INFO_NODE, op="Const")
    node.attr["dtype"].CopyFrom(type_attr(DT_STRING))
    node.attr["value"].CopyFrom(AttrValue(tensor=string_tensor([json.dumps(noted, sort_keys=True).encode()], ())))
    node.attr[ADDED].CopyFrom(bytes_attr(ROLE))


def _text(message: Any) -> str:
    return base64.b64encode(message.SerializeToString(deterministic=True)).decode()
