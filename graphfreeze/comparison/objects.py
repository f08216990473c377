"""Compares two object graphs by path: kinds, children, flags, and the functions that objects stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphfreeze.comparison.difference import Change, Subject
from graphfreeze.comparison.functions import Functions
from graphfreeze.savedmodel import dtype_name, object_paths
from graphfreeze.savedmodel.protos import Message


def object_differences(a: Message, b: Message, functions: Functions) -> Iterator[Change]:
    """Differences of two SavedObjectGraphs; functions in one place are matched."""
    one, other = _paths(a), _paths(b)
    by_path = {path: number for number, path in other.items()}
    for number, path in one.items():
        if path not in by_path:
            yield Change(_subject(a.nodes[number]), "removed", _shown(path, a.nodes[number]))
        else:
            yield from _node(a.nodes[number], b.nodes[by_path[path]], path, one, other, functions)
    known = set(one.values())
    for number, path in other.items():
        if path not in known:
            yield Change(_subject(b.nodes[number]), "added", _shown(path, b.nodes[number]))


def concrete_differences(a: Message, b: Message, functions: Functions) -> Iterator[Change]:
    """Differences of what two SavedObjectGraphs say of functions that were matched."""
    one, other = _paths(a), _paths(b)
    for name_a, name_b in list(functions.matched):
        if name_a not in a.concrete_functions or name_b not in b.concrete_functions:
            if (name_a in a.concrete_functions) != (name_b in b.concrete_functions):
                yield Change("function", "changed", name_a, "only one of the two can be called by itself")
            continue
        x, y = a.concrete_functions[name_a], b.concrete_functions[name_b]
        bound = [one.get(n, "") for n in x.bound_inputs], [other.get(n, "") for n in y.bound_inputs]
        if bound[0] != bound[1]:
            named = [", ".join(f"'{p}'" for p in paths) or "nothing" for paths in bound]
            yield Change("function", "changed", name_a, f"captures {named[0]} -> {named[1]}")
        for field in ("canonicalized_input_signature", "output_signature"):
            if _bytes(getattr(x, field)) != _bytes(getattr(y, field)):
                yield Change("function", "changed", name_a, field.replace("_", " ").replace("canonicalized ", ""))


def stored_differences(a: Message | None, b: Message | None) -> Iterator[Change]:
    """Differences of two TrackableObjectGraphs, those of the checkpoints."""
    if a is None or b is None:
        if (a is None) != (b is None):
            yield Change("object", "removed" if b is None else "added", "the checkpoint's object graph")
        return
    one, other = _trackables(a), _trackables(b)
    for path in [*one, *(p for p in other if p not in one)]:
        if one.get(path) != other.get(path):
            what = "removed" if path not in other else "added" if path not in one else "changed"
            yield Change("object", what, path or "the root", "in the checkpoint")  # type: ignore[arg-type]


def _paths(graph: Message) -> dict[int, str]:
    """Shortest path of every node; what no child leads to is called by its number."""
    paths = object_paths(graph)
    hidden = iter(range(len(graph.nodes)))
    return {n: paths[n] if n in paths else f"#{next(hidden)}" for n in range(len(graph.nodes))}


def _trackables(graph: Message) -> dict[str, tuple[object, ...]]:
    paths = _paths(graph)
    found: dict[str, tuple[object, ...]] = {}
    for number, node in enumerate(graph.nodes):
        children = sorted((c.local_name, paths[c.node_id]) for c in node.children)
        slots = sorted(
            (s.slot_name, paths[s.original_variable_node_id], paths[s.slot_variable_node_id])
            for s in node.slot_variables
        )
        rest = type(node)()
        rest.CopyFrom(node)
        rest.ClearField("children")
        rest.ClearField("slot_variables")
        found[paths[number]] = (children, slots, rest.SerializeToString(deterministic=True))
    return found


def _node(
    a: Message, b: Message, path: str, one: Mapping[int, str], other: Mapping[int, str], functions: Functions
) -> Iterator[Change]:
    kind = a.WhichOneof("kind")
    if kind != b.WhichOneof("kind"):
        yield Change("object", "changed", path or "the root", f"{kind} -> {b.WhichOneof('kind')}")
        return
    x, y = _children(a, one), _children(b, other)
    if x != y:
        names = sorted({n for n, _ in x.symmetric_difference(y)})
        yield Change("object", "changed", path or "the root", f"children {', '.join(map(repr, names))}")
    if kind == "variable":
        yield from _variable(a.variable, b.variable, path)
    elif _rest(a) != _rest(b):
        yield Change("object", "changed", path or "the root", str(kind))
    if len(a.function.concrete_functions) != len(b.function.concrete_functions):
        counts = len(a.function.concrete_functions), len(b.function.concrete_functions)
        yield Change("object", "changed", path, f"{counts[0]} -> {counts[1]} concrete functions")
    for name_a, name_b in zip(_function_names(a), _function_names(b), strict=False):
        functions.pair(name_a, name_b)


def _children(node: Message, paths: Mapping[int, str]) -> set[tuple[str, str]]:
    """Children, slots, dependencies and saveables, with the paths of what they are."""
    found = {(str(c.local_name), paths[c.node_id]) for c in node.children}
    found |= {(f"dependency {c.local_name}", paths[c.node_id]) for c in node.dependencies}
    for name, saveable in node.saveable_objects.items():
        functions = (saveable.save_function, saveable.restore_function)
        found.add((f"saveable {name}", " ".join(paths.get(n, "") for n in functions)))
    for slot in node.slot_variables:
        found.add(
            (f"slot {slot.slot_name} of {paths[slot.original_variable_node_id]}", paths[slot.slot_variable_node_id])
        )
    return found


def _function_names(node: Message) -> list[str]:
    names = list(node.function.concrete_functions)
    for name in (node.bare_concrete_function.concrete_function_name, node.captured_tensor.concrete_function):
        names += [name] if name else []
    return names


def _variable(a: Message, b: Message, path: str) -> Iterator[Change]:
    name = a.name or path
    if a.trainable != b.trainable:
        words = {True: "trainable", False: "not trainable"}
        yield Change("flag", "changed", name, f"{words[a.trainable]} -> {words[b.trainable]}")
    if a.name != b.name:
        yield Change("variable", "changed", path, f"name '{a.name}' -> '{b.name}'")
    if a.dtype != b.dtype:
        yield Change("variable", "changed", name, f"{dtype_name(a.dtype)} -> {dtype_name(b.dtype)}")
    if _bytes(a.shape) != _bytes(b.shape):
        yield Change("variable", "changed", name, f"shape {_shape(a.shape)} -> {_shape(b.shape)}")
    rest = [type(a)(), type(b)()]
    for copy, source in zip(rest, (a, b), strict=True):
        copy.CopyFrom(source)
        for field in ("trainable", "name", "dtype", "shape"):
            copy.ClearField(field)
    if _bytes(rest[0]) != _bytes(rest[1]):
        yield Change("variable", "changed", name, "device, synchronisation or aggregation")


def _rest(node: Message) -> bytes:
    """All of an object but what refers to other nodes and functions."""
    copy = type(node)()
    copy.CopyFrom(node)
    for field in ("children", "dependencies", "slot_variables", "saveable_objects"):
        copy.ClearField(field)
    if copy.WhichOneof("kind") == "function":
        del copy.function.concrete_functions[:]
    elif copy.WhichOneof("kind") == "bare_concrete_function":
        copy.bare_concrete_function.concrete_function_name = ""
    elif copy.WhichOneof("kind") == "captured_tensor":
        copy.captured_tensor.concrete_function = ""
    return _bytes(copy)


def _subject(node: Message) -> Subject:
    return "variable" if node.WhichOneof("kind") == "variable" else "object"


def _shown(path: str, node: Message) -> str:
    return (node.variable.name or path) if node.WhichOneof("kind") == "variable" else path


def _shape(proto: Message) -> str:
    return "unknown" if proto.unknown_rank else str([d.size if d.size >= 0 else None for d in proto.dim])


def _bytes(message: Message) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))
