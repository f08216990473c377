"""Takes the new variables out of the saver's functions, and lets them use changed keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from graphfreeze.graph.names import original_function_name
from graphfreeze.graph.refs import attr_of, is_control, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.passes.undo_nodes import drop_control_outputs
from graphfreeze.passes.undo_signature import drop_arguments, remove_entries
from graphfreeze.savedmodel.protos import MetaGraphDef, NodeDef


def undo_saver(
    meta: MetaGraphDef,
    handles: Collection[str],
    renamed: Mapping[str, str],
) -> dict[str, str]:
    """Removes ``handles`` (VarHandleOps) from save and restore; returns old function name -> new."""
    main = Scope(meta.graph_def)
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    names: dict[str, str] = {}
    for text in (meta.saver_def.restore_op_name, meta.saver_def.save_tensor_name):
        call = main.nodes.get(text.split(":")[0])
        if call is None or "f" not in call.attr or call.attr["f"].func.name not in functions:
            continue
        data = [t for t in call.input if not is_control(t)]
        positions = {i for i, t in enumerate(data) if producer(t) in handles}
        function = functions[call.attr["f"].func.name]
        _take_out(Scope(function), {function.signature.input_arg[i].name for i in positions})
        drop_arguments(function, positions)
        _rename_keys(function.node_def, renamed)
        old, new = function.signature.name, original_function_name(function.signature.name)
        if new not in functions:
            function.signature.name = new
            call.attr["f"].func.name = new
            names[old] = new
        remove_entries(call.input, positions)
        remove_entries(call.attr["Tin"].list.type, positions)
    return names


def _take_out(scope: Scope, arguments: set[str]) -> None:
    """Removes everything that serves one of the arguments only."""
    gone = {n.name for n in scope.node_list if n.input and n.input[0] in arguments}
    entries: dict[str, set[int]] = {}
    for node in scope.node_list:
        if node.op == "AssignVariableOp" and node.name in gone:
            _follow_back(scope, node.input[1], gone, entries)
        if node.op == "SaveV2":
            for i, text in enumerate(t for t in node.input if not is_control(t)):
                if i >= 3 and _comes_from(scope, text, gone):
                    entries.setdefault(node.name, set()).add(i - 3)
    for name, indices in entries.items():
        _drop_entries(scope, scope.nodes[name], indices)
    kept = [n for n in scope.node_list if n.name not in gone]
    for node in kept:
        remove_entries(node.input, [i for i, t in enumerate(node.input) if is_control(t) and producer(t) in gone])
    data = [n.SerializeToString() for n in kept]
    del scope.node_list[:]
    scope.node_list.extend(NodeDef.FromString(d) for d in data)
    drop_control_outputs(scope, gone)


def _follow_back(scope: Scope, ref: str, gone: set[str], entries: dict[str, set[int]]) -> None:
    """From an assignment back to the entry of RestoreV2 that it took."""
    parts = ref.split(":")
    node = scope.nodes[parts[0]]
    while node.op != "RestoreV2":
        gone.add(node.name)
        parts = node.input[0].split(":")
        node = scope.nodes[parts[0]]
    entries.setdefault(node.name, set()).add(int(parts[-1]))


def _comes_from(scope: Scope, ref: str, gone: set[str]) -> bool:
    """Whether a saved tensor is read from one of the variables; marks the way as gone."""
    way: list[str] = []
    name = producer(ref)
    while name in scope.nodes:
        node = scope.nodes[name]
        if name in gone:
            gone.update(way)
            return True
        if node.op != "Identity":
            return False
        way.append(name)
        name = producer(node.input[0])
    return False


def _drop_entries(scope: Scope, node: NodeDef, indices: set[int]) -> None:
    """Takes entries out of a RestoreV2 or SaveV2: names, slices, dtypes, and inputs or outputs."""
    for text in (node.input[1], node.input[2]):
        tensor = scope.nodes[producer(text)].attr["value"].tensor
        count = tensor.tensor_shape.dim[0].size
        values = list(tensor.string_val)
        values += values[-1:] * (count - len(values))
        tensor.string_val[:] = [v for i, v in enumerate(values) if i not in indices]
        tensor.tensor_shape.dim[0].size = count - len(indices)
        noted = scope.nodes[producer(text)].attr
        if "_output_shapes" in noted:
            noted["_output_shapes"].list.shape[0].dim[0].size = count - len(indices)
    remove_entries(node.attr["dtypes"].list.type, indices)
    if node.op == "SaveV2":
        remove_entries(node.input, {i + 3 for i in indices})
        return
    if len(attr_of(node, "_output_shapes").list.shape) > max(indices):
        remove_entries(node.attr["_output_shapes"].list.shape, indices)
    for user in scope.node_list:
        for i, text in enumerate(user.input):
            if producer(text) == node.name and not is_control(text):
                head, _, index = text.rpartition(":")
                user.input[i] = f"{head}:{int(index) - sum(d < int(index) for d in indices)}"


def _rename_keys(nodes: Collection[NodeDef], renamed: Mapping[str, str]) -> None:
    for node in nodes:
        if renamed and node.op == "Const" and node.name.endswith("tensor_names"):
            values = node.attr["value"].tensor.string_val
            values[:] = [renamed.get(v.decode(), v.decode()).encode() for v in values]
