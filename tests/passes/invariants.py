"""What must hold of any rewritten meta graph, beyond what the passes check of themselves."""

import re
from collections.abc import Iterator

from graphfreeze.graph.attrs import ADDED
from graphfreeze.graph.ops import CALLS, Access, CallKind, CallOp
from graphfreeze.graph.refs import attr_of, is_control
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.trace import trace_meta_graph
from graphfreeze.passes.check import broken_rules
from graphfreeze.savedmodel import DT_RESOURCE, DTYPE_NUMBERS, object_paths, variable_keys
from graphfreeze.savedmodel.protos import Message
from tests.passes.rewriting import Rewritten

_NODE_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")


def broken(done: Rewritten) -> list[str]:
    """Everything that is wrong, one line each."""
    checks = (_own_rules, _calls, _arguments, _names, _keys, _new_variables, _saver, _no_raw_use, _untouched)
    return [f"{check.__name__}: {line}" for check in checks for line in check(done)]


def _own_rules(done: Rewritten) -> Iterator[str]:
    yield from (f"{rule}: {place}" for rule, place in broken_rules(done.new))


def _scopes(done: Rewritten) -> Iterator[Scope]:
    yield Scope(done.new.graph_def)
    yield from (Scope(f) for f in done.new.graph_def.library.function)


def _calls(done: Rewritten) -> Iterator[str]:
    """Dtypes of a call, its functions' arguments and results, and the shapes noted beside them, all agree."""
    signatures = {f.signature.name: f.signature for f in done.new.graph_def.library.function}
    for scope in _scopes(done):
        for node in scope.node_list:
            op = CALLS.get(node.op)
            if op is not None and op.kind is not CallKind.DATA:
                yield from (f"{scope.name}, {node.name}: {line}" for line in _call(node, op, signatures))


def _call(node: Message, op: CallOp, signatures: dict[str, Message]) -> Iterator[str]:
    is_loop = op.kind is CallKind.LOOP
    taken = list(node.attr[op.types].list.type)
    given = list(attr_of(node, "T" if is_loop else "Tout").list.type)
    if len(taken) != len([i for i in node.input if not is_control(i)]) - op.skip:
        yield f"{len(taken)} dtypes for {len(node.input)} inputs"
    for attribute in op.functions:
        value = node.attr[attribute]
        for called in [value.func] if value.HasField("func") else value.list.func:
            if [a.type for a in signatures[called.name].input_arg] != taken:
                yield f"arguments of {called.name}"
            if attribute != "cond" and [a.type for a in signatures[called.name].output_arg] != given:
                yield f"results of {called.name}"
    for name in ("output_shapes", "_output_shapes"):
        noted = attr_of(node, name).list.shape
        if noted and len(noted) != len(given):
            yield f"{len(noted)} {name} for {len(given)} results"
    if is_loop and "_num_original_outputs" in node.attr and node.attr["_num_original_outputs"].i != len(given):
        yield "_num_original_outputs"
    for index in attr_of(node, "_read_only_resource_inputs").list.i:
        if not op.skip <= index < op.skip + len(taken) or taken[index - op.skip] != DT_RESOURCE:
            yield f"input {index} is no resource that is only read"


def _arguments(done: Rewritten) -> Iterator[str]:
    for function in done.new.graph_def.library.function:
        count = len(function.signature.input_arg)
        shapes = attr_of(function, "_input_shapes").list.shape
        if shapes and len(shapes) != count:
            yield f"{function.signature.name}: {len(shapes)} _input_shapes for {count} arguments"
        if any(not 0 <= i < count for i in function.arg_attr):
            yield f"{function.signature.name}: arg_attr beyond the arguments"
        if set(function.ret) != {o.name for o in function.signature.output_arg}:
            yield f"{function.signature.name}: results and their edges differ"
        if any(key.startswith("_graphfreeze") for key in function.attr):
            yield f"{function.signature.name}: a mark on the function itself makes loading fail"
    for name, concrete in done.new.object_graph_def.concrete_functions.items():
        signature = next(f for f in done.new.graph_def.library.function if f.signature.name == name).signature
        bound = len(concrete.bound_inputs)
        for argument, number in zip(signature.input_arg[-bound:] if bound else (), concrete.bound_inputs, strict=True):
            kind = done.new.object_graph_def.nodes[number].WhichOneof("kind")
            if kind == "variable" and argument.type != DT_RESOURCE:
                yield f"{name}: argument '{argument.name}' is bound to a variable"


def _names(done: Rewritten) -> Iterator[str]:
    for scope in _scopes(done):
        taken = [n.name for n in scope.node_list] + list(scope.arguments)
        if len(set(taken)) != len(taken):
            yield f"{scope.name}: a name twice"
        yield from (f"{scope.name}: '{n}'" for n in taken if not _NODE_NAME.fullmatch(n))


def _keys(done: Rewritten) -> Iterator[str]:
    """Keys of the source are what they were, and its variables still find them."""
    old = variable_keys(done.old.object_graph_def, done.before.bundle_graph)
    new = variable_keys(done.new.object_graph_def, done.after.bundle_graph)
    yield from (f"node {n} had key {k}, has {new.get(n)}" for n, k in old.items() if new.get(n) != k)
    yield from (f"{k} is gone" for k in done.before.keys() - done.after.keys())
    yield from (f"{k} was changed" for k in done.before.keys() & set(done.after.put))


def _added(done: Rewritten) -> dict[int, str]:
    """New variables of the object graph -> their keys."""
    graph = done.new.object_graph_def
    keys = variable_keys(graph, done.after.bundle_graph)
    first = len(done.old.object_graph_def.nodes)
    return {n: keys.get(n, "no key") for n, node in enumerate(graph.nodes) if n >= first and node.HasField("variable")}


def _new_variables(done: Rewritten) -> Iterator[str]:
    handles = {n.name: n for n in done.new.graph_def.node if n.op == "VarHandleOp"}
    for number, key in _added(done).items():
        variable = done.new.object_graph_def.nodes[number].variable
        shape = tuple(d.size for d in variable.shape.dim)
        value = done.after.put.get(key)
        if value is None or (DTYPE_NUMBERS[str(value.dtype)], value.shape) != (variable.dtype, shape):
            yield f"{variable.name}: its value under {key} does not fit"
        handle = handles.get(variable.name)
        if (
            handle is None
            or handle.attr["dtype"].type != variable.dtype
            or handle.attr["shape"].shape != variable.shape
        ):
            yield f"{variable.name}: no handle"
        if not object_paths(done.new.object_graph_def).get(number):
            yield f"{variable.name}: nothing leads to it"


def _saver(done: Rewritten) -> Iterator[str]:
    """The restore function assigns every new tensor to its own handle, and the save function reads it from there."""
    keys = set(_added(done).values())
    if not keys:
        return
    meta = done.new
    main = Scope(meta.graph_def)
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    names = {done.new.object_graph_def.nodes[n].variable.name: k for n, k in _added(done).items()}
    for op, edge in (("RestoreV2", meta.saver_def.restore_op_name), ("SaveV2", meta.saver_def.save_tensor_name)):
        call = main.nodes[edge.split(":")[0]]
        inner = Scope(functions[call.attr["f"].func.name])
        node = next(n for n in inner.node_list if n.op == op)
        listed = [v.decode() for v in inner.nodes[node.input[1].split(":")[0]].attr["value"].tensor.string_val]
        data = [i for i in node.input if not is_control(i)]
        if op == "SaveV2" and not len(listed) == len(data) - 3 == len(node.attr["dtypes"].list.type):
            yield f"SaveV2 has {len(listed)} names for {len(data) - 3} tensors"
        handles = dict(zip(inner.arguments, main.data_inputs(call), strict=True))
        for name, key in names.items():
            index = listed.index(key) if key in listed else None
            if index is None:
                yield f"{op} does not know {key}"
                continue
            argument = _saved_from(inner, data[3 + index]) if op == "SaveV2" else _restored_to(inner, node, index)
            if handles.get(argument) != name:
                yield f"{op} takes {key} for {handles.get(argument)}, not {name}"


def _saved_from(scope: Scope, edge: str) -> str:
    node = scope.nodes[edge.split(":")[0]]
    while node.op != "ReadVariableOp":
        node = scope.nodes[node.input[0].split(":")[0]]
    if node.name not in scope.proto.control_ret.values():
        return f"(a read that may not run: {node.name})"
    return node.input[0]


def _restored_to(scope: Scope, restore, index: int) -> str:
    (value,) = scope.uses(f"{restore.name}:tensors:{index}")
    assign = scope.nodes[scope.uses(scope.ref(value.node, "Identity"))[0].node]
    if assign.name not in scope.proto.control_ret.values():
        return f"(an assignment that may not run: {assign.name})"
    return assign.input[0]


def _no_raw_use(done: Rewritten) -> Iterator[str]:
    """Nobody but our own nodes takes the raw value of a frozen variable; statistics are held by guards alone."""
    trace = trace_meta_graph(done.after, done.new)
    merged = [v for v in done.plan.meta_graphs[0].variables if v.strategy and v.atoms and v.kind != "statistic"]
    touched = {v.path for v in merged}
    functions = {f.signature.name: Scope(f) for f in done.new.graph_def.library.function}
    for body in trace.bodies.values():
        scope = functions[body.key.function]
        for read in body.reads:
            if trace.variables[read.variable].path not in touched or read.access.path is Access.SHAPE:
                continue
            node = scope.nodes[read.node]
            if ADDED in node.attr:
                continue
            raw = [scope.ref(x.node, x.op) for x in read.access.lookups] or [scope.ref(node.name, node.op)]
            for use in (u for edge in raw for u in scope.uses(edge)):
                user = scope.nodes.get(use.node)
                if user is None or (ADDED not in user.attr and user.op not in ("Shape", "Size", "Rank")):
                    yield f"{scope.name}: '{use.node or use.result}' takes {read.node} of variable {read.variable} raw"


def _untouched(done: Rewritten) -> Iterator[str]:
    """Functions that stayed, signatures, main-graph nodes but calls, objects but ours: equal as messages."""
    kept = {f.signature.name: f for f in done.old.graph_def.library.function}
    for function in done.new.graph_def.library.function:
        if kept.get(function.signature.name, function) != function:
            yield f"function {function.signature.name} changed and kept its name"
    if {k: done.old.signature_def[k] for k in done.old.signature_def} != dict(done.new.signature_def):
        yield "signatures changed"
    nodes = {n.name: n for n in done.new.graph_def.node}
    for node in done.old.graph_def.node:
        if node != nodes.get(node.name) and node.op not in CALLS and node.op != "Const":
            yield f"node {node.name} of the main graph changed"
    for number, node in enumerate(done.old.object_graph_def.nodes):
        if (
            number
            and node.WhichOneof("kind") in ("asset", "constant", "resource")
            and (node != done.new.object_graph_def.nodes[number])
        ):
            yield f"object {number} changed"
