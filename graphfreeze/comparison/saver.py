"""What the saver's functions do, by key: TensorFlow numbers their arguments and nodes anew at every save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from graphfreeze.comparison.difference import Change
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.variables import string_constant
from graphfreeze.savedmodel.protos import Message


def saver_calls(meta: Message) -> tuple[str, str]:
    """The main graph's nodes that save and restore."""
    return meta.saver_def.save_tensor_name.split(":")[0], meta.saver_def.restore_op_name.split(":")[0]


def saver_function(meta: Message, call: str) -> str | None:
    """The function that a node of ``saver_calls`` runs; None in a TF1 graph."""
    node = next((n for n in meta.graph_def.node if n.name == call), None)
    return str(node.attr["f"].func.name) if node is not None and "f" in node.attr else None


def saver_differences(a: Message, b: Message) -> list[Change]:
    """Compares which keys are saved from and restored to which variables, and by which ops."""
    changes = []
    for call_a, call_b, name in zip(saver_calls(a), saver_calls(b), ("save", "restore"), strict=True):
        one, other = _entries(a, call_a), _entries(b, call_b)
        if one != other:
            keys = sorted({e[0] for e in (one - other) + (other - one) if e[0]})
            words = f"keys {', '.join(map(repr, keys[:3]))}" if keys else "ops"
            changes.append(Change("function", "changed", name, words))
    return changes


def _entries(meta: Message, call: str) -> Counter[tuple[str, ...]]:
    """(key, slice, dtype, op, variable) of each tensor, and how often each op occurs."""
    function = saver_function(meta, call)
    body = next((f for f in meta.graph_def.library.function if f.signature.name == function), None)
    if body is None:
        return Counter()
    main, inner = Scope(meta.graph_def), Scope(body)
    given = dict(zip(inner.arguments, main.data_inputs(main.nodes[call]), strict=False))
    found: Counter[tuple[str, ...]] = Counter(("", n.op) for n in inner.node_list)
    for node in inner.node_list:
        if node.op in ("SaveV2", "RestoreV2"):
            for i, row in enumerate(_rows(inner, node)):
                source = _origin(inner, main, given, node.input[3 + i]) if node.op == "SaveV2" else ""
                found[*row, node.op, source] += 1
        elif node.op == "AssignVariableOp":
            restored = _restored(inner, node.input[1])
            found[restored, node.op, _origin(inner, main, given, node.input[0])] += 1
    return found


def _rows(scope: Scope, node: Message) -> list[tuple[str, str, str]]:
    types = node.attr["dtypes"].list.type
    names, slices = (_filled(string_constant(scope, node.input[i]), len(types)) for i in (1, 2))
    return [(n, s, str(t)) for n, s, t in zip(names, slices, types, strict=True)]


def _filled(values: Sequence[bytes], count: int) -> list[str]:
    """A tensor whose last elements are equal may be written without them."""
    texts = [v.decode("utf-8", "replace") for v in values] or [""]
    return [*texts, *texts[-1:] * (count - len(texts))][:count]


def _restored(scope: Scope, text: str) -> str:
    parts = text.split(":")
    node = scope.nodes.get(parts[0])
    while node is not None and node.op in ("Identity", "Cast", "Reshape"):
        parts = node.input[0].split(":")
        node = scope.nodes.get(parts[0])
    if node is None or node.op != "RestoreV2":
        return ""
    rows, index = _rows(scope, node), int(parts[-1]) if len(parts) > 1 else 0
    return rows[index][0] if index < len(rows) else ""


def _origin(inner: Scope, main: Scope, given: dict[str, str], text: str) -> str:
    """The variable or node that a tensor of a saver's function comes from."""
    name = text.split(":")[0]
    while name not in given:
        node = inner.nodes.get(name)
        if node is None or not node.input:
            return "" if node is None else node.op
        name = node.input[0].split(":")[0]
    outer = main.nodes.get(given[name].split(":")[0])
    if outer is None:
        return ""
    return f"{outer.op} {outer.attr['shared_name'].s.decode() or outer.name}"
