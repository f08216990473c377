"""Lets everything outside the library that names a function name the restored one."""

from __future__ import annotations

from collections.abc import Mapping

from graphfreeze.graph.attrs import REPLACES
from graphfreeze.graph.refs import producer
from graphfreeze.savedmodel.protos import FunctionDef, Message, MetaGraphDef


def rename_concrete(meta: MetaGraphDef, names: Mapping[str, str]) -> None:
    """Renames concrete functions, old -> new. The library still holds the functions with their marks."""
    graph = meta.object_graph_def
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    for old, new in names.items():
        if old != new:
            graph.concrete_functions[new].CopyFrom(graph.concrete_functions[old])
            del graph.concrete_functions[old]
    for node in graph.nodes:
        match node.WhichOneof("kind"):
            case "function":
                node.function.concrete_functions[:] = [names.get(n, n) for n in node.function.concrete_functions]
            case "bare_concrete_function":
                old = node.bare_concrete_function.concrete_function_name
                node.bare_concrete_function.concrete_function_name = names.get(old, old)
            case "captured_tensor":
                captured = node.captured_tensor
                _restore_tensor(captured, functions.get(captured.concrete_function))
                captured.concrete_function = names.get(captured.concrete_function, captured.concrete_function)
    for gradient in meta.graph_def.library.registered_gradients:
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)


def _restore_tensor(captured: Message, function: FunctionDef | None) -> None:
    """A captured tensor that a merge took over is the raw one again."""
    for node in () if function is None else function.node_def:
        if node.name == producer(captured.name) and REPLACES in node.attr:
            raw = node.attr[REPLACES].s.decode()
            captured.name = f"{producer(raw)}:{raw.rsplit(':', 1)[-1]}"
