"""Takes entries out of the savers of a TF1 graph whose variables go: ours, and those of savers that came later."""

from __future__ import annotations

from collections.abc import Collection

from graphfreeze.graph.refs import attr_of, is_control, parse_ref, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.passes.undo_signature import remove_entries
from graphfreeze.savedmodel.protos import NodeDef

_FIRST_TENSOR = 3


def drop_saved(scope: Scope, gone: Collection[str]) -> None:
    """Takes out of every SaveV2 that stays the tensors that go."""
    for node in scope.node_list:
        if node.op == "SaveV2" and node.name not in gone:
            data = scope.data_inputs(node)[_FIRST_TENSOR:]
            indices = {i for i, text in enumerate(data) if producer(text) in gone}
            if indices:
                _drop(scope, node, indices)
                remove_entries(node.input, {i + _FIRST_TENSOR for i in indices})


def drop_restored(scope: Scope, gone: Collection[str]) -> set[str]:
    """Takes out of every RestoreV2 that stays the outputs that only nodes which go took.

    Returns:
        Nodes that did nothing but hand such an output on, and go as well.
    """
    way: set[str] = set()
    for node in list(scope.node_list):
        if node.op != "RestoreV2" or node.name in gone:
            continue
        indices = set()
        for i in range(len(node.attr["dtypes"].list.type)):
            taken = _taken_by(scope, scope.ref(node.name, node.op, i), gone)
            if taken is not None:
                indices.add(i)
                way |= taken
        if not indices:
            continue
        _drop(scope, node, indices)
        if len(attr_of(node, "_output_shapes").list.shape) > max(indices):
            remove_entries(node.attr["_output_shapes"].list.shape, indices)
        for user in scope.node_list:
            for i, text in enumerate(user.input):
                if producer(text) == node.name and not is_control(text):
                    index = parse_ref(text, in_function=False).index
                    user.input[i] = scope.ref(node.name, node.op, index - sum(d < index for d in indices))
    return way


def _taken_by(scope: Scope, ref: str, gone: Collection[str]) -> set[str] | None:
    """The nodes that hand a tensor on, where that ends in nodes that go only; None where something else takes it."""
    users = scope.uses(ref)
    found: set[str] = set()
    for use in users:
        if use.node in gone:
            continue
        if scope.nodes[use.node].op != "Identity":
            return None
        inner = _taken_by(scope, use.node, gone)
        if inner is None:
            return None
        found |= {use.node} | inner
    return found if users else None


def _drop(scope: Scope, node: NodeDef, indices: set[int]) -> None:
    for text in (node.input[1], node.input[2]):
        holder = scope.nodes[producer(text)]
        tensor = holder.attr["value"].tensor
        count = tensor.tensor_shape.dim[0].size
        values = list(tensor.string_val)
        if len(values) == count or min(indices) < len(values) - 1:
            values += values[-1:] * (count - len(values))
            tensor.string_val[:] = [v for i, v in enumerate(values) if i not in indices]
        # else all that goes is within the last value, which stands for the rest
        tensor.tensor_shape.dim[0].size = count - len(indices)
        if "_output_shapes" in holder.attr:
            holder.attr["_output_shapes"].list.shape[0].dim[0].size = count - len(indices)
    remove_entries(node.attr["dtypes"].list.type, indices)
