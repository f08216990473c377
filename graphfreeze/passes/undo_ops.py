"""Keeps the list of ops true that TensorFlow writes beside a graph when it saves one."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf import text_format

from graphfreeze.savedmodel.protos import Message, MetaGraphDef

_INDICES = 'attr {name: "Tindices" type: "type" allowed_values {list {type: DT_INT32 type: DT_INT64}}}'
_READS = """
op {{
  name: "ResourceGather"
  input_arg {{name: "resource" type: DT_RESOURCE}} input_arg {{name: "indices" type_attr: "Tindices"}}
  output_arg {{name: "output" type_attr: "dtype"}}
  attr {{name: "batch_dims" type: "int" default_value {{i: 0}}}}
  attr {{name: "validate_indices" type: "bool" default_value {{b: true}}}}
  attr {{name: "dtype" type: "type"}}
  {indices}
  is_stateful: true
}}
op {{
  name: "ResourceGatherNd"
  input_arg {{name: "resource" type: DT_RESOURCE}} input_arg {{name: "indices" type_attr: "Tindices"}}
  output_arg {{name: "output" type_attr: "dtype"}}
  attr {{name: "dtype" type: "type"}}
  {indices}
  is_stateful: true
}}
"""
"""The ops that a data function has no more where it was handed a value, as TensorFlow registers them."""


def used_ops(meta: MetaGraphDef) -> set[str]:
    """Names of all ops in the main graph and in functions."""
    return {node.op for node in _nodes(meta)}


def restore_ops(meta: MetaGraphDef, before: set[str]) -> None:
    """Takes out of the list what only our nodes used, and puts back what only they had replaced."""
    listed = meta.meta_info_def.stripped_op_list.op
    if not listed:
        return
    after = used_ops(meta)
    ops: dict[str, Message] = {op.name: op for op in listed if op.name in after or op.name not in before}
    for op in text_format.Parse(_READS.format(indices=_INDICES), type(meta.meta_info_def.stripped_op_list)()).op:
        if op.name in after:
            ops.setdefault(op.name, op)
    if ops.keys() != {op.name for op in listed}:
        data = [ops[name].SerializeToString() for name in sorted(ops)]
        kind = type(listed[0])
        del listed[:]
        listed.extend(kind.FromString(d) for d in data)


def _nodes(meta: MetaGraphDef) -> Iterator[Message]:
    yield from meta.graph_def.node
    for function in meta.graph_def.library.function:
        yield from function.node_def
