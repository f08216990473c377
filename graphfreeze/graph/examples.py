"""What a graph parses out of serialized ``tf.Example`` protos, so that such protos can be made.

A function that takes them says only that it takes strings. Which features they must have stands at the op that parses
them: ``ParseExampleV2``, ``ParseExample`` or ``ParseSingleExample`` (tensorflow/core/ops/parsing_ops.cc).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from graphfreeze.graph.ops import CALLS, CallKind
from graphfreeze.graph.refs import attr_of, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.variables import static_shape
from graphfreeze.savedmodel import DTYPE_NAMES
from graphfreeze.savedmodel.protos import FunctionDef, MetaGraphDef, NodeDef

_THROUGH = frozenset({"Identity", "Reshape", "ExpandDims", "Squeeze", "PlaceholderWithDefault", "StopGradient"})


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature: ``float32``, ``int64`` or ``string``; ``shape`` is None where it may have any number of values."""

    name: bytes
    dtype: str
    shape: tuple[int, ...] | None


Features = tuple[Feature, ...]


class Examples:
    """Finds the features of whatever is parsed in one meta graph."""

    def __init__(self, meta: MetaGraphDef) -> None:
        functions = meta.graph_def.library.function
        self._functions: dict[str, FunctionDef] = {f.signature.name: f for f in functions}
        self._main = Scope(meta.graph_def)
        scopes = [meta.graph_def.node, *(f.node_def for f in functions)]
        self._any = any(n.op.startswith("Parse") for scope in scopes for n in scope)

    def of_function(self, name: str, count: int) -> tuple[Features | None, ...]:
        """For each of the first ``count`` arguments, what is parsed out of it; None where nothing is."""
        if not self._any or name not in self._functions:
            return ()
        scope = Scope(self._functions[name])
        return tuple(self._first(scope, argument, (name,)) for argument in scope.arguments[:count])

    def of_tensor(self, name: str) -> Features | None:
        """The same for a tensor of the main graph, ``NAME:0``."""
        return self._first(self._main, self._main.canonical(name), ()) if self._any else None

    def _first(self, scope: Scope, ref: str, above: tuple[str, ...]) -> Features | None:
        return next(self._of(scope, ref, above), None)

    def _of(self, scope: Scope, ref: str, above: tuple[str, ...]) -> Iterator[Features]:
        for use in scope.uses(ref):
            if use.result is not None:
                continue
            node = scope.nodes[use.node]
            if use.index == 0 and node.op in _PARSERS:
                found = _PARSERS[node.op](scope, node)
                if found is not None:
                    yield found
            elif node.op in _THROUGH and use.index == 0:
                yield from self._of(scope, scope.ref(node.name, node.op), above)
            elif node.op in CALLS and CALLS[node.op].kind is not CallKind.DATA:
                yield from self._of_call(node, use.index - CALLS[node.op].skip, above)

    def _of_call(self, node: NodeDef, position: int, above: tuple[str, ...]) -> Iterator[Features]:
        for attribute in CALLS[node.op].functions:
            value = attr_of(node, attribute)
            for name in (f.name for f in value.list.func or [value.func]):
                if position >= 0 and name in self._functions and name not in above:
                    inner = Scope(self._functions[name])
                    yield from self._of(inner, inner.arguments[position], (*above, name))


def _version_2(scope: Scope, node: NodeDef) -> Features | None:
    _, _, sparse, dense, ragged = scope.data_inputs(node)[:5]
    keys = [_strings(scope, text) for text in (sparse, dense, ragged)]
    if any(k is None for k in keys):
        return None
    several = [*zip(keys[0] or (), _types(node, "sparse_types"), strict=False)]
    several += [*zip(keys[2] or (), _types(node, "ragged_value_types"), strict=False)]
    return (*_dense(keys[1] or (), node), *(Feature(k, t, None) for k, t in several))


def _version_1(scope: Scope, node: NodeDef) -> Features | None:
    given = scope.data_inputs(node)[2:]
    sparse, dense = attr_of(node, "Nsparse").i, attr_of(node, "Ndense").i
    keys = [_strings(scope, text) for text in given[: sparse + dense]]
    if any(k is None or len(k) != 1 for k in keys):
        return None
    names = [k[0] for k in keys if k]
    several = zip(names[:sparse], _types(node, "sparse_types"), strict=False)
    return (*_dense(names[sparse:], node), *(Feature(k, t, None) for k, t in several))


def _single(_: Scope, node: NodeDef) -> Features:
    several = zip(attr_of(node, "sparse_keys").list.s, _types(node, "sparse_types"), strict=False)
    return (*_dense(attr_of(node, "dense_keys").list.s, node), *(Feature(k, t, None) for k, t in several))


_PARSERS = {"ParseExampleV2": _version_2, "ParseExample": _version_1, "ParseSingleExample": _single}


def _dense(keys: list[bytes] | tuple[bytes, ...], node: NodeDef) -> Iterator[Feature]:
    shapes = [static_shape(s) for s in attr_of(node, "dense_shapes").list.shape]
    for key, dtype, shape in zip(keys, _types(node, "Tdense"), shapes, strict=False):
        yield Feature(key, dtype, shape)


def _types(node: NodeDef, name: str) -> list[str]:
    return [DTYPE_NAMES[t] for t in attr_of(node, name).list.type]


def _strings(scope: Scope, text: str) -> list[bytes] | None:
    node = scope.nodes.get(producer(text))
    if node is None or node.op != "Const":
        return None
    tensor = attr_of(node, "value").tensor
    shape = static_shape(tensor.tensor_shape) or ()
    size = 1
    for n in shape:
        size *= n
    values = list(tensor.string_val)
    # A tensor of equal strings is written as one.
    return values * size if len(values) == 1 else values
