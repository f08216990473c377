"""Which variables can get a gradient from what a function gives out, read off the graph.

A gradient goes back over every edge that carries floating or complex numbers, but not through ``StopGradient`` and not
out of the functions of datasets. What an op's gradient does is not known here (``inspect --deep`` asks TensorFlow for
it), so a path is necessary, not sufficient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from graphfreeze.graph.ops import CALLS, Access, CallKind
from graphfreeze.graph.refs import attr_of, parse_ref, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.uses import Body, Key, Trace
from graphfreeze.graph.variables import is_float
from graphfreeze.savedmodel import DTYPE_NAMES, base_dtype
from graphfreeze.savedmodel.protos import MetaGraphDef, NodeDef, OpDef

Variables = frozenset[int]
NONE: Variables = frozenset()


@dataclass(slots=True)
class Reach:
    """What one function was found to do: variables behind its float results, and what stood in the way."""

    variables: Variables = NONE
    read: Variables = NONE
    """Variables that train and that the function reads, with or without a path."""
    blocked: dict[tuple[str, str], Variables] = field(default_factory=dict)
    """(function, StopGradient node) -> variables whose gradient ends there."""
    ops: set[str] = field(default_factory=set)
    """Ops that a gradient has to pass."""


class GradientPaths:
    """Answers for the functions of one meta graph."""

    def __init__(self, meta: MetaGraphDef, trace: Trace) -> None:
        self._trace = trace
        self._functions = {f.signature.name: f for f in meta.graph_def.library.function}
        self._scopes: dict[str, Scope] = {}
        self._ops: dict[str, OpDef] = {op.name: op for op in meta.meta_info_def.stripped_op_list.op}
        self._trains = frozenset(v.index for v in trace.variables if trace.trains(v))
        self._memo: dict[tuple[Key, tuple[Variables, ...]], tuple[Variables, ...]] = {}
        self._open: set[Key] = set()

    def of_function(self, key: Key) -> Reach:
        """The reach of a concrete function."""
        reach = Reach()
        outputs = self._run(key, (), reach)
        reach.variables = NONE.union(*outputs)
        return reach

    def of_edges(self, scope: Scope, body: Body, fetched: Sequence[str]) -> Reach:
        """The reach of tensors in a main graph."""
        reach = Reach()
        values = self._values(scope, body, {}, reach)
        reach.variables = NONE.union(*(self._at(scope, values, text) for text in fetched))
        return reach

    def _run(self, key: Key, arguments: tuple[Variables, ...], reach: Reach) -> tuple[Variables, ...]:
        function = self._functions[key.function]
        if (key, arguments) in self._memo and not self._new(key, reach):
            return self._memo[key, arguments]
        if key in self._open:
            return tuple(NONE for _ in function.signature.output_arg)
        self._open.add(key)
        scope = self._scopes.setdefault(key.function, Scope(function))
        given = {name: arguments[i] for i, name in enumerate(scope.arguments) if i < len(arguments)}
        values = self._values(scope, self._trace.bodies.get(key, Body(key)), given, reach)
        outputs = tuple(
            self._at(scope, values, function.ret[o.name]) if _carries(o.type) else NONE
            for o in function.signature.output_arg
        )
        self._open.discard(key)
        self._memo[key, arguments] = outputs
        return outputs

    def _new(self, key: Key, reach: Reach) -> bool:
        """Whether this reach has not seen the function's reads yet."""
        body = self._trace.bodies.get(key)
        return body is not None and any(r.variable in self._trains - reach.read for r in body.reads)

    def _values(self, scope: Scope, body: Body, given: dict[str, Variables], reach: Reach) -> dict[str, Variables]:
        """Node (of a call: edge) -> variables whose gradient can come from there."""
        reads = {r.node: r.variable for r in body.reads if r.access.path is not Access.SHAPE}
        bindings = {c.node: {(x.attribute, x.index): x.key for x in c.callees} for c in body.calls}
        values = dict(given)
        for node in scope.in_data_order():
            found = NONE.union(*(self._at(scope, values, text) for text in scope.data_inputs(node)))
            if reads.get(node.name) in self._trains:
                reach.read |= {reads[node.name]}
                found |= {reads[node.name]}
            if node.op in CALLS:
                self._call(scope, node, values, bindings.get(node.name, {}), reach)
            elif node.op == "StopGradient":
                if found:
                    reach.blocked[scope.name, node.name] = found
            elif found and self._gives_floats(node):
                values[node.name] = found
                reach.ops.add(node.op)
        return values

    def _at(self, scope: Scope, values: dict[str, Variables], text: str) -> Variables:
        return values.get(scope.canonical(text)) or values.get(producer(text), NONE)

    def _call(
        self,
        scope: Scope,
        node: NodeDef,
        values: dict[str, Variables],
        bindings: dict[tuple[str, int | None], Key],
        reach: Reach,
    ) -> None:
        op = CALLS[node.op]
        start = op.skip + (len(attr_of(node, op.skip_types).list.type) if op.skip_types else 0)
        arguments = tuple(self._at(scope, values, text) for text in scope.data_inputs(node)[start:])
        keys = [k for k in self._callees(node, bindings) if k.function in self._functions]
        if op.kind is CallKind.DATA:
            for key in keys:
                self._run(key, (), reach)
            return
        if op.kind is CallKind.LOOP:
            outputs = self._loop(keys[-1], arguments, reach) if keys else ()
        else:
            results = [self._run(key, arguments, reach) for key in keys]
            outputs = tuple(NONE.union(*column) for column in zip(*results, strict=False))
        for _, ref in scope.outputs(node):
            index = parse_ref(ref, in_function=scope.in_function).index
            if index < len(outputs) and outputs[index]:
                values[scope.canonical(ref)] = outputs[index]

    def _loop(self, key: Key, arguments: tuple[Variables, ...], reach: Reach) -> tuple[Variables, ...]:
        """What a loop hands on grows from round to round until it is all that it can be."""
        while True:
            outputs = self._run(key, arguments, reach)
            grown = tuple(a | b for a, b in zip(arguments, outputs, strict=False))
            if grown == arguments:
                return grown
            arguments = grown

    def _callees(self, node: NodeDef, bindings: dict[tuple[str, int | None], Key]) -> list[Key]:
        found = []
        for attribute in CALLS[node.op].functions:
            value = attr_of(node, attribute)
            single = value.WhichOneof("value") == "func"
            for i, function in enumerate([value.func] if single else value.list.func):
                found.append(bindings.get((attribute, None if single else i), Key(function.name)))
        return found

    def _gives_floats(self, node: NodeDef) -> bool:
        """Whether an output carries gradients; an op that the model does not describe is taken to."""
        definition = self._ops.get(node.op)
        if definition is None:
            return True
        for output in definition.output_arg:
            if output.type_list_attr:
                types = list(attr_of(node, output.type_list_attr).list.type)
            else:
                types = [_type_attr(node, definition, output.type_attr) if output.type_attr else output.type]
            if any(_carries(t) for t in types):
                return True
        return False


def _type_attr(node: NodeDef, definition: OpDef, name: str) -> int:
    """A dtype attribute; saving leaves out those that are the op's default."""
    if name in node.attr:
        return int(node.attr[name].type)
    return next((int(a.default_value.type) for a in definition.attr if a.name == name), 0)


def _carries(dtype: int) -> bool:
    # Variant lists carry the values that a loop has pushed.
    name = DTYPE_NAMES.get(base_dtype(dtype), "")
    return is_float(name) or name == "variant"
