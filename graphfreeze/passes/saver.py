"""Pass ``saver``: teaches the saver's functions the new variables.

Loaders without objects (the TF1 loader, TensorFlow Serving, Java, Go, C++) restore through
``saver_def.restore_op_name``. A new variable that this function does not know is uninitialised there, while
``tf.saved_model.load`` works: the kind of fault that nobody sees until production.
"""

from __future__ import annotations

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.attrs import ADDED, bytes_attr, shape_proto, type_attr
from graphfreeze.graph.names import FreshNames, changed_function_name
from graphfreeze.graph.refs import is_control, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.passes.saved_graph import update_saved_graph
from graphfreeze.passes.signature import set_handle_data
from graphfreeze.passes.state import Stored, Work
from graphfreeze.savedmodel import DT_RESOURCE, DTYPE_NUMBERS
from graphfreeze.savedmodel.protos import AttrValue, FunctionDef, NodeDef


def extend_saver(work: Work) -> None:
    """Extends the restore and the save function, and the object graph that saving writes."""
    if work.meta.saver_def.restore_op_name:
        if work.stored:
            _extend_functions(work, list(work.stored.values()))
        update_saved_graph(work.meta, work.before, work.bundle_graph)


def _extend_functions(work: Work, new: list[Stored]) -> None:
    main = Scope(work.meta.graph_def)
    restore = main.nodes.get(producer(work.meta.saver_def.restore_op_name))
    save = main.nodes.get(producer(work.meta.saver_def.save_tensor_name))
    for call, extend in ((restore, _extend_restore), (save, _extend_save)):
        if call is None or "f" not in call.attr:
            raise UnsupportedModelError(
                f"The saver of the model at '{work.draft.model.directory}' is not a function call "
                f"('{work.meta.saver_def.restore_op_name}'), so loaders without objects could not restore the frozen "
                "copies. Save the model again with this TensorFlow's tf.saved_model.save."
            )
        _extend_call(work, call, new, extend)


def _extend_call(work: Work, call: NodeDef, new: list[Stored], extend: object) -> None:
    old = call.attr["f"].func.name
    library = work.meta.graph_def.library
    function = FunctionDef()
    function.CopyFrom(next(f for f in library.function if f.signature.name == old))
    scope = Scope(function)
    names = FreshNames([*scope.nodes, *scope.arguments])
    handles = []
    for i, stored in enumerate(new):
        name = names.fresh(f"graphfreeze_{i}")
        argument = function.signature.input_arg.add(name=name, type=DT_RESOURCE)
        set_handle_data(argument, DTYPE_NUMBERS[stored.new.dtype], stored.new.shape)
        function.arg_attr[len(function.signature.input_arg) - 1].attr["_user_specified_name"].s = name.encode()
        if "_input_shapes" in function.attr:
            function.attr["_input_shapes"].list.shape.add()
        handles.append(name)
    extend(scope, names, new, handles)  # type: ignore[operator]
    name = changed_function_name(old, function.SerializeToString(deterministic=True))
    function.signature.name = name
    index = next(i for i, f in enumerate(library.function) if f.signature.name == old)
    library.function[index].CopyFrom(function)
    work.replaced.add(old)
    call.attr["f"].func.name = name
    data = [text for text in call.input if not is_control(text)]
    controls = [text for text in call.input if is_control(text)]
    del call.input[:]
    call.input.extend([*data, *(stored.handle for stored in new), *controls])
    call.attr["Tin"].list.type.extend(DT_RESOURCE for _ in new)


def _extend_restore(scope: Scope, names: FreshNames, new: list[Stored], handles: list[str]) -> None:
    restore = next(n for n in scope.node_list if n.op == "RestoreV2")
    assigns = [n.name for n in scope.node_list if n.op == "AssignVariableOp"]
    followers = [n for n in scope.node_list if assigns and f"^{assigns[-1]}" in n.input]
    first = len(restore.attr["dtypes"].list.type)
    _grow_names(scope, restore.input[1], restore.input[2], [s.key for s in new])
    for i, (stored, handle) in enumerate(zip(new, handles, strict=True)):
        dtype = DTYPE_NUMBERS[stored.new.dtype]
        restore.attr["dtypes"].list.type.append(dtype)
        if "_output_shapes" in restore.attr:
            restore.attr["_output_shapes"].list.shape.add(unknown_rank=True)
        value = _add(
            scope, names, restore, "Identity", [f"{restore.name}:tensors:{first + i}"], {"T": type_attr(dtype)}
        )
        attrs = {"dtype": type_attr(dtype), "_has_manual_control_dependencies": AttrValue(b=True)}
        assign = _add(scope, names, restore, "AssignVariableOp", [handle, f"{value}:output:0"], attrs)
        for node in followers:
            node.input.append(f"^{assign}")
        _keep_running(scope, assign)


def _extend_save(scope: Scope, names: FreshNames, new: list[Stored], handles: list[str]) -> None:
    save = next(n for n in scope.node_list if n.op == "SaveV2")
    followers = [n for n in scope.node_list if n.op == "NoOp" and any(i.endswith("ReadVariableOp") for i in n.input)]
    _grow_names(scope, save.input[1], save.input[2], [s.key for s in new])
    data = [text for text in save.input if not is_control(text)]
    controls = [text for text in save.input if is_control(text)]
    for stored, handle in zip(new, handles, strict=True):
        dtype = DTYPE_NUMBERS[stored.new.dtype]
        read = _add(scope, names, None, "ReadVariableOp", [handle], {"dtype": type_attr(dtype)})
        value = _add(scope, names, save, "Identity", [f"{read}:value:0"], {"T": type_attr(dtype)})
        data.append(f"{value}:output:0")
        save.attr["dtypes"].list.type.append(dtype)
        for node in followers:
            node.input.append(f"^{read}")
        _keep_running(scope, read)
    del save.input[:]
    save.input.extend([*data, *controls])


def _add(
    scope: Scope, names: FreshNames, beside: NodeDef | None, op: str, inputs: list[str], attrs: dict[str, AttrValue]
) -> str:
    name = names.fresh(f"graphfreeze/{op}")
    node = scope.node_list.add(name=name, op=op, input=inputs, device="" if beside is None else beside.device)
    for key, value in attrs.items():
        node.attr[key].CopyFrom(value)
    node.attr[ADDED].CopyFrom(bytes_attr("saver"))
    return name


def _keep_running(scope: Scope, node: str) -> None:
    """A function runs a node with an effect only where it is a control output, or feeds one."""
    scope.proto.signature.control_output.append(node)
    scope.proto.control_ret[node] = node


def _grow_names(scope: Scope, names_ref: str, slices_ref: str, keys: list[str]) -> None:
    for ref, added in ((names_ref, [k.encode() for k in keys]), (slices_ref, [b""] * len(keys))):
        node = scope.nodes[ref.split(":")[0]]
        tensor = node.attr["value"].tensor
        count = tensor.tensor_shape.dim[0].size
        values = list(tensor.string_val)
        # A constant of equal strings may be stored as one.
        values += values[-1:] * (count - len(values))
        tensor.string_val[:] = values + added
        tensor.tensor_shape.dim[0].size = count + len(keys)
        if "_output_shapes" in node.attr:
            node.attr["_output_shapes"].list.shape[0].CopyFrom(shape_proto((count + len(keys),)))
