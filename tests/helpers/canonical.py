"""A SavedModel in a form in which two saves of one model are equal, and nothing else is.

TensorFlow numbers functions, captures and nodes of its saver anew at every save and keeps no order of nodes. Those
numbers and that order are taken out here; the saver's functions are told by what they do. All else is left as it is:
attributes, edges, signatures, both object graphs, flags, bound inputs, collections, and every tensor to the bit.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphfreeze.savedmodel import OBJECT_GRAPH_KEY, Bundle, read_saved_model
from graphfreeze.savedmodel.protos import FunctionDef, Message, MetaGraphDef, NodeDef, TrackableObjectGraph
from tests.helpers.compare import proto_diff

RESOURCE = 20
_COUNTED = r"unknown(_\d+)?|.*_\d+___redundant_placeholder\d+"
_FUNCTIONS_OF_SAVER = ("SAVE", "RESTORE")


@dataclass(frozen=True, slots=True)
class Saver:
    """What the saver's two functions do: (key, slice, dtype, by which op, what) of each tensor; and their ops."""

    entries: dict[str, list[tuple[str, ...]]]
    ops: dict[str, Counter[str]]
    object_graph: Message | None


@dataclass(frozen=True, slots=True)
class Canonical:
    """One meta graph, and all that is stored beside it."""

    meta: Message
    saver: Saver
    bundle_graph: Message | None
    tensors: dict[str, tuple[int, tuple[int, ...], bytes]]
    files: dict[str, bytes]


def canonical(path: Path, number: int = 0) -> Canonical:
    """The canonical form of the SavedModel at ``path``."""
    model = read_saved_model(path)
    meta = MetaGraphDef()
    meta.CopyFrom(model.proto.meta_graphs[number])
    saver = _take_saver(meta)
    _rename_functions(meta)
    for function in meta.graph_def.library.function:
        _normalise(function)
    _sort(meta.graph_def.library.function, lambda f: f.signature.name)
    _sort(meta.graph_def.node, lambda n: n.name)
    bundle = model.bundle
    files = {str(f): (path / f).read_bytes() for f in model.other_files() if f.name != "fingerprint.pb"}
    if bundle is None:
        return Canonical(meta, saver, None, {}, files)
    graph = TrackableObjectGraph.FromString(bundle.read_tensor(OBJECT_GRAPH_KEY).item())
    return Canonical(meta, saver, graph, dict(_tensors(bundle)), files)


def assert_same_model(actual: Path, expected: Path, but: str | None = None) -> None:
    """Fails with the first differences, but those in whose line a pattern is found."""
    found = differences(canonical(actual), canonical(expected))
    found = [line for line in found if but is None or not re.search(but, line)]
    assert not found, "\n".join([f"{len(found)} differences", *(line[:400] for line in found[:8])])


def differences(actual: Canonical, expected: Canonical) -> list[str]:
    """All that differs, one line each."""
    found = proto_diff(actual.meta, expected.meta)
    for title, a, e in (
        ("saver's object graph", actual.saver.object_graph, expected.saver.object_graph),
        ("checkpoint's object graph", actual.bundle_graph, expected.bundle_graph),
    ):
        if a is None or e is None:
            found += [] if a is e else [f"{title}: only in {'the first' if e is None else 'the second'}"]
        else:
            found += [f"{title}: {line}" for line in proto_diff(a, e)]
    for title, x, y in (
        ("saver", actual.saver.entries, expected.saver.entries),
        ("saver's ops", actual.saver.ops, expected.saver.ops),
        ("tensor", actual.tensors, expected.tensors),
        ("file", actual.files, expected.files),
    ):
        found += _mapping_diff(title, x, y)
    return found


def _mapping_diff(title: str, x: Any, y: Any) -> Iterator[str]:
    for key in sorted({*x, *y}):
        if key not in x or key not in y:
            yield f"{title} '{key}': only in {'the first' if key in x else 'the second'}"
        elif x[key] != y[key]:
            yield f"{title} '{key}': {_short(x[key], y[key])}"


def _short(x: Any, y: Any) -> str:
    if isinstance(x, list):
        x, y = [i for i in x if i not in y], [i for i in y if i not in x]
    return f"{str(x)[:300]} != {str(y)[:300]}"


def _tensors(bundle: Bundle) -> Iterator[tuple[str, tuple[int, tuple[int, ...], bytes]]]:
    for key, entry in bundle.entries.items():
        if key != OBJECT_GRAPH_KEY:
            yield key, (entry.dtype, tuple(d.size for d in entry.shape.dim), bundle.read_bytes(key))


def _sort(field: Any, key: Any) -> None:
    kept = sorted(
        (m.SerializeToString(deterministic=True) for m in field), key=lambda b: key(type(field[0]).FromString(b))
    )
    kind = type(field[0]) if len(field) else None
    del field[:]
    field.extend(kind.FromString(data) for data in kept)


# Functions by a walk from the roots


def _functions_of(node: NodeDef) -> Iterator[Message]:
    for key in sorted(node.attr):
        value = node.attr[key]
        match value.WhichOneof("value"):
            case "func":
                yield value.func
            case "list":
                yield from value.list.func


def _rename_functions(meta: MetaGraphDef) -> None:
    library = meta.graph_def.library
    functions = {f.signature.name: f for f in library.function}
    gradients = {g.registered_op_type: g.gradient_func for g in library.registered_gradients}
    names: dict[str, str] = {}
    gradient_names: dict[str, str] = {}

    def walk(name: str) -> None:
        if name not in functions or name in names:
            return
        names[name] = f"{_stem(name)}#{len(names)}"
        for node in sorted(functions[name].node_def, key=lambda n: n.name):
            for function in _functions_of(node):
                walk(function.name)
            registered = node.attr["_gradient_op_type"].s.decode() if "_gradient_op_type" in node.attr else ""
            if registered in gradients:
                gradient_names.setdefault(registered, f"{registered.split('-')[0]}#{len(gradient_names)}")
                node.attr["_gradient_op_type"].s = gradient_names[registered].encode()
                walk(gradients[registered])

    for name in _root_functions(meta):
        walk(name)
    # What nothing refers to but strings in attributes.
    for name in sorted(functions, key=lambda n: (_stem(n), _content(functions[n]), _number(n))):
        walk(name)
    for function in functions.values():
        function.signature.name = names[function.signature.name]
    scopes = [meta.graph_def.node, *(f.node_def for f in functions.values())]
    for function in (f for nodes in scopes for node in nodes for f in _functions_of(node)):
        function.name = names.get(function.name, function.name)
    for gradient in library.registered_gradients:
        gradient.registered_op_type = gradient_names.get(gradient.registered_op_type, gradient.registered_op_type)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)
    _sort(library.registered_gradients, lambda g: (g.registered_op_type, g.gradient_func))
    _rename_in_objects(meta, names)


def _root_functions(meta: MetaGraphDef) -> Iterator[str]:
    for node in meta.object_graph_def.nodes:
        yield from node.function.concrete_functions
        yield node.bare_concrete_function.concrete_function_name
    for node in sorted(meta.graph_def.node, key=lambda n: n.name):
        yield from (f.name for f in _functions_of(node))


def _stem(name: str) -> str:
    return re.sub(r"_\d+$", "", name)


def _number(name: str) -> int:
    match = re.search(r"_(\d+)$", name)
    return int(match[1]) if match else 0


def _content(function: FunctionDef) -> str:
    return re.sub(r"\d+", "", " ".join(sorted(f"{n.name} {n.op} {list(n.input)}" for n in function.node_def)))


def _rename_in_objects(meta: MetaGraphDef, names: dict[str, str]) -> None:
    graph = meta.object_graph_def
    concrete = {names[k]: v.SerializeToString() for k, v in graph.concrete_functions.items()}
    graph.concrete_functions.clear()
    for name, data in concrete.items():
        graph.concrete_functions[name].ParseFromString(data)
    for node in graph.nodes:
        match node.WhichOneof("kind"):
            case "function":
                node.function.concrete_functions[:] = [names[n] for n in node.function.concrete_functions]
            case "bare_concrete_function":
                bare = node.bare_concrete_function
                bare.concrete_function_name = names[bare.concrete_function_name]
            case "captured_tensor":
                captured = node.captured_tensor
                captured.concrete_function = names.get(captured.concrete_function, captured.concrete_function)


def _normalise(function: FunctionDef) -> None:
    """Takes numbers of captures and the order of nodes out of one function."""
    names = {}
    for i, argument in enumerate(function.signature.input_arg):
        if argument.type == RESOURCE or re.fullmatch(_COUNTED, argument.name):
            names[argument.name] = f"capture{i}"
            argument.name = names[argument.name]
        noted = function.arg_attr[i].attr if i in function.arg_attr else {}
        if "_user_specified_name" in noted:
            noted["_user_specified_name"].s = re.sub(rb"\A(input_)?\d+\Z", b"#", noted["_user_specified_name"].s)
    for i, output in enumerate(function.signature.output_arg):
        if output.type == RESOURCE:
            # A loop's body gives handles back under names that are counted.
            text = function.ret.pop(output.name)
            output.name = f"handle{i}"
            function.ret[output.name] = text
    for node in function.node_def:
        if "shared_name" in node.attr:
            # A table's name holds the address of an object and a count of loads.
            shared = node.attr["shared_name"]
            shared.s = re.sub(rb"0x[0-9a-f]+|(_load(_\d+)+)+", b"#", shared.s)
        data = [names.get(text, text) for text in node.input if not text.startswith("^")]
        node.input[:] = [*data, *sorted(text for text in node.input if text.startswith("^"))]
    for result, text in list(function.ret.items()):
        function.ret[result] = names.get(text, text)
    _sort(function.node_def, lambda n: n.name)
    function.signature.control_output[:] = sorted(function.signature.control_output)


# The saver, by what it does


def _take_saver(meta: MetaGraphDef) -> Saver:
    """Takes the saver's functions out of the graph and says what they do."""
    nodes = {n.name: n for n in meta.graph_def.node}
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    saver = Saver({}, {}, None)
    graph: Message | None = None
    gone: set[str] = set()
    places = (meta.saver_def.save_tensor_name, meta.saver_def.restore_op_name)
    for title, place in zip(_FUNCTIONS_OF_SAVER, places, strict=True):
        call = nodes.get(place.split(":")[0])
        if call is None or "f" not in call.attr:
            continue
        function = functions[call.attr["f"].func.name]
        gone.add(function.signature.name)
        saver.entries[title] = sorted(_entries(function, call, nodes))
        saver.ops[title] = Counter(n.op for n in function.node_def)
        call.attr["f"].func.name = title
        graph = _object_graph(call, nodes) or graph
        pairs = sorted(zip(call.input, call.attr["Tin"].list.type, strict=False))
        call.input[:] = [text for text, _ in pairs]
        call.attr["Tin"].list.type[:] = [dtype for _, dtype in pairs]
    kept = [f.SerializeToString() for f in meta.graph_def.library.function if f.signature.name not in gone]
    del meta.graph_def.library.function[:]
    meta.graph_def.library.function.extend(FunctionDef.FromString(data) for data in kept)
    return Saver(saver.entries, saver.ops, graph)


def _object_graph(call: NodeDef, nodes: dict[str, NodeDef]) -> Message | None:
    for text in call.input:
        node = nodes[text.split(":")[0]]
        if node.op == "Const" and node.attr["dtype"].type == 7:
            graph = TrackableObjectGraph.FromString(node.attr["value"].tensor.string_val[0])
            node.attr["value"].tensor.string_val[0] = b"the object graph"
            return graph
    return None


def _entries(function: FunctionDef, call: NodeDef, nodes: dict[str, NodeDef]) -> Iterator[tuple[str, ...]]:
    inner = {n.name: n for n in function.node_def}
    given = dict(zip((a.name for a in function.signature.input_arg), call.input, strict=False))

    def source(text: str) -> str:
        """What an edge comes from: a variable or another node of the main graph, or an op of the saver."""
        name = text.split(":")[0]
        if name in given:
            outer = nodes[given[name].split(":")[0]]
            return f"{outer.op} {outer.attr['shared_name'].s.decode() or outer.name}"
        node = inner[name]
        return source(node.input[0]) if node.op in ("Identity", "ReadVariableOp") else f"{node.op} {node.name}"

    for node in function.node_def:
        if node.op == "SaveV2":
            names, slices = _strings(inner, node.input[1]), _strings(inner, node.input[2])
            for i, text in enumerate(t for t in node.input[3:] if not t.startswith("^")):
                yield names[i], slices[i], str(node.attr["dtypes"].list.type[i]), node.op, source(text)
        elif node.op != "RestoreV2":
            for text in node.input:
                restore, number = _restored(inner, text)
                if restore is not None and node.op != "Identity":
                    names, slices = _strings(inner, restore.input[1]), _strings(inner, restore.input[2])
                    dtype = restore.attr["dtypes"].list.type[number]
                    yield names[number], slices[number], str(dtype), node.op, source(node.input[0])


def _restored(inner: dict[str, NodeDef], text: str) -> tuple[NodeDef | None, int]:
    parts = text.split(":")
    node = inner.get(parts[0])
    while node is not None and node.op == "Identity":
        parts = node.input[0].split(":")
        node = inner.get(parts[0])
    if node is None or node.op != "RestoreV2" or text.startswith("^"):
        return None, 0
    return node, int(parts[-1])


def _strings(inner: dict[str, NodeDef], text: str) -> list[str]:
    tensor = inner[text.split(":")[0]].attr["value"].tensor
    values = [v.decode() for v in tensor.string_val]
    return values + values[-1:] * (tensor.tensor_shape.dim[0].size - len(values))
