"""Pass ``saver`` in a TF1 graph: the new variables in every saver that the graph holds, beside their originals.

A graph that was exported more than once has several (``save/``, ``save_1/``, ...), of which ``saver_def`` names one;
a sharded one has a SaveV2 per device. So what saves or restores the original does so with the new ones as well,
whoever runs it.
"""

from __future__ import annotations

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.attrs import ADDED, bool_attr, bytes_attr, shape_proto, string_tensor, type_attr
from graphfreeze.graph.refs import is_control, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.tf1 import restoring
from graphfreeze.passes.state import Stored, Work
from graphfreeze.passes.tf1_variables import Followers, add_node
from graphfreeze.savedmodel import DT_STRING, DTYPE_NUMBERS
from graphfreeze.savedmodel.protos import AttrValue, NodeDef

_FIRST_TENSOR = 3
_HANDS_ON = frozenset({"Identity", "ReadVariableOp", "Cast"})


def extend_graph_saver(work: Work) -> None:
    """Extends every SaveV2 and every restoring group."""
    new: dict[str, list[Stored]] = {}
    for (index, _), stored in work.stored.items():
        for handle in work.trace.variables[index].handles:
            new.setdefault(handle, []).append(stored)
    if new:
        _extend_restores(work, new)
        _extend_saves(work, new)


def _extend_restores(work: Work, new: dict[str, list[Stored]]) -> None:
    scope, names = Scope(work.meta.graph_def), work.names()
    followers = Followers(scope)
    restored: set[str] = set()
    for assign, source in list(restoring(work.meta)):
        for stored in new.get(producer(assign.input[0]), ()):
            restored.add(stored.handle)
            anchor = f"{assign.name}/graphfreeze/{stored.handle.rsplit('/', 2)[-1]}"
            dtype = type_attr(DTYPE_NUMBERS[stored.new.dtype])
            key = _strings(scope, names.fresh(f"{anchor}/tensor_names"), stored.key.encode())
            whole = _strings(scope, names.fresh(f"{anchor}/shape_and_slices"), b"")
            inputs = [source.input[0], key, whole]
            value = add_node(scope, names, names.fresh(f"{anchor}/RestoreV2"), "RestoreV2", inputs, source.device)
            value.attr["dtypes"].list.type.append(DTYPE_NUMBERS[stored.new.dtype])
            target = [stored.handle, value.name]
            done = add_node(scope, names, names.fresh(f"{anchor}/Assign"), assign.op, target, assign.device)
            done.attr["dtype" if assign.op == "AssignVariableOp" else "T"].CopyFrom(dtype)
            if assign.op == "Assign":
                done.attr["validate_shape"].CopyFrom(bool_attr(True))
                done.attr["use_locking"].CopyFrom(bool_attr(True))
            followers.add(assign.name, done.name)
    missing = [s.handle for held in new.values() for s in held if s.handle not in restored]
    if missing and work.meta.saver_def.restore_op_name:
        raise UnsupportedModelError(
            f"The saver of the meta graph {list(work.meta.meta_info_def.tags)} "
            f"('{work.meta.saver_def.restore_op_name}') does not assign to the variable of '{missing[0]}' from a "
            "checkpoint, so loading could not restore it. Save the model again with a tf.compat.v1.train.Saver"
        )


def _strings(scope: Scope, name: str, text: bytes) -> str:
    node = scope.node_list.add(name=name, op="Const")
    node.attr["dtype"].CopyFrom(type_attr(DT_STRING))
    node.attr["value"].CopyFrom(AttrValue(tensor=string_tensor([text], (1,))))
    node.attr[ADDED].CopyFrom(bytes_attr("variable"))
    return name


def _extend_saves(work: Work, new: dict[str, list[Stored]]) -> None:
    scope = Scope(work.meta.graph_def)
    for node in list(scope.node_list):
        if node.op != "SaveV2":
            continue
        data = scope.data_inputs(node)
        controls = [text for text in node.input if is_control(text)]
        saved = [_saved_variable(scope, text) for text in data[_FIRST_TENSOR:]]
        added = [stored for name in saved for stored in new.get(name, ())]
        if not added:
            continue
        _grow(work, scope, node, data[1], [s.key.encode() for s in added])
        _grow(work, scope, node, data[2], [b""] * len(added))
        for stored in added:
            is_ref = scope.nodes[stored.handle].op != "VarHandleOp"
            data.append(stored.handle if is_ref else f"{stored.handle}/Read/ReadVariableOp")
            node.attr["dtypes"].list.type.append(DTYPE_NUMBERS[stored.new.dtype])
        del node.input[:]
        node.input.extend([*data, *controls])


def _saved_variable(scope: Scope, text: str) -> str:
    node = scope.nodes.get(producer(text))
    while node is not None and node.op in _HANDS_ON:
        node = scope.nodes.get(producer(node.input[0]))
    return "" if node is None else str(node.name)


def _grow(work: Work, scope: Scope, save: NodeDef, text: str, added: list[bytes]) -> None:
    """Appends strings to a constant that one SaveV2 takes. One of equal strings may be stored as one, and stays so."""
    node = scope.nodes[producer(text)]
    users = [n for n in scope.node_list if any(producer(t) == node.name for t in n.input)]
    if node.op != "Const" or len(users) > 1:
        raise UnsupportedModelError(
            f"Node '{save.name}' (SaveV2) in the main graph takes names from '{node.name}' ({node.op}), which is no "
            "constant of its own, so the new variables cannot be saved with the others. Save the model again with a "
            "tf.compat.v1.train.Saver"
        )
    tensor = node.attr["value"].tensor
    count = tensor.tensor_shape.dim[0].size
    values = list(tensor.string_val)
    if len(values) == count or set(added) != set(values[-1:]):
        values += values[-1:] * (count - len(values))
        tensor.string_val[:] = [*values, *added]
    tensor.tensor_shape.dim[0].size = count + len(added)
    if "_output_shapes" in node.attr:
        node.attr["_output_shapes"].list.shape[0].CopyFrom(shape_proto((count + len(added),)))
