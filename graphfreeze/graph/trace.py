"""Finds every use of every variable: the analysis that everything else stands on.

A handle starts in the main graph (VarHandleOp) or at a concrete function's bound inputs and is followed through calls,
branches, loops and data functions. One FunctionDef can be called with different variables, so a body is traced once
per binding of its resource arguments. The result is a value; passes never search again.

Covered scopes: the main graph's calls and every concrete function of the object graph, with all functions that these
reach (gradient functions are concrete functions too). Left out on purpose: what the saver's functions do, and a TF2
main graph's own reads and assigns, which initialise (both are neither read nor write, see design.md). In a TF1 graph
all uses are in the main graph; ``tf1_trace`` finds them, and ``tf1`` says what of it initialises, saves or restores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.access import read_access
from graphfreeze.graph.batch_norm import find_norms, has_norm_ops
from graphfreeze.graph.ops import CALLS, FORWARDS, READS, Access, CallKind, CallOp, Use, use_of
from graphfreeze.graph.partitions import find_mod_lookups
from graphfreeze.graph.refs import attr_of
from graphfreeze.graph.scope import MAIN, Scope
from graphfreeze.graph.slots import body_slots
from graphfreeze.graph.tf1 import is_restored
from graphfreeze.graph.tf1_trace import trace_tf1_main
from graphfreeze.graph.uses import Body, Call, Callee, Key, Read, Trace, Unknown, Write
from graphfreeze.graph.variables import find_variables, is_tf2
from graphfreeze.savedmodel import Draft
from graphfreeze.savedmodel.protos import FunctionDef, MetaGraphDef, NodeDef

Traces = Mapping[tuple[str, ...], Trace]
"""The trace of every meta graph, by its tags."""


def trace_model(draft: Draft) -> Traces:
    """Traces every variable of every meta graph."""
    return {tuple(m.meta_info_def.tags): trace_meta_graph(draft, m) for m in draft.model.proto.meta_graphs}


def trace_meta_graph(draft: Draft, meta: MetaGraphDef) -> Trace:
    """Traces every variable of one meta graph."""
    return _Tracer(draft, meta).run()


class _Tracer:
    def __init__(self, draft: Draft, meta: MetaGraphDef) -> None:
        self.meta = meta
        self.variables = find_variables(draft, meta)
        self.functions: dict[str, FunctionDef] = {f.signature.name: f for f in meta.graph_def.library.function}
        self.scopes: dict[str, Scope] = {}
        self.bodies: dict[Key, Body] = {}
        self.open: set[Key] = set()
        self.captured = _captured_nodes(meta)

    def run(self) -> Trace:
        by_node = {v.node_id: v.index for v in self.variables if v.node_id is not None}
        roots: dict[str, Key] = {}
        for name, concrete in sorted(self.meta.object_graph_def.concrete_functions.items()):
            if name not in self.functions:
                continue
            first = len(self.functions[name].signature.input_arg) - len(concrete.bound_inputs)
            binding = tuple((first + i, by_node[n]) for i, n in enumerate(concrete.bound_inputs) if n in by_node)
            roots[name] = Key(name, binding)
            self.body(roots[name])
        main = self._main()
        # What the main graph of a TF2 model hands over is data.
        bodies = [*self.bodies.values(), *([] if is_tf2(self.meta) else [main])]
        slots = {s for b in bodies for s in body_slots(self.scope(b.key.function), b, self.variables)}
        self.variables = tuple(replace(v, is_state=True) if v.index in slots else v for v in self.variables)
        if any(body.writes for body in bodies):
            # Few models train inside, and what looks for gradients takes its time to import.
            from graphfreeze.graph.gradient_ways import Ways
            from graphfreeze.graph.gradients import find_gradients

            find_gradients(Ways(self.variables, bodies, self.scope, self.functions))
        if any(v.part is not None for v in self.variables):
            main.by_mod.update(find_mod_lookups(self.scope(MAIN), main))
        for body in bodies:
            if has_norm_ops(self.scope(body.key.function)):
                body.norms = find_norms(self.scope(body.key.function), body, self.variables)
        return Trace(self.variables, self.bodies, roots, main, is_tf2(self.meta))

    def _main(self) -> Body:
        if is_tf2(self.meta):
            return self._tf2_main()
        return trace_tf1_main(self.meta, self.variables, self._visit, self.captured)

    def _tf2_main(self) -> Body:
        scope = Scope(self.meta.graph_def)
        handles = {h: (v.index, -1) for v in self.variables for h in v.handles}
        saver = {
            self.meta.saver_def.restore_op_name.split(":")[0],
            self.meta.saver_def.save_tensor_name.split(":")[0],
        }
        body = Body(Key(MAIN))
        for node in scope.in_data_order():
            if node.name in saver or node.op == "VarHandleOp":
                continue
            if node.op in CALLS or node.op in FORWARDS:
                self._visit(scope, node, handles, body)
        return body

    def scope(self, name: str) -> Scope:
        if name not in self.scopes:
            self.scopes[name] = Scope(self.functions[name] if name else self.meta.graph_def)
        return self.scopes[name]

    def body(self, key: Key) -> Body:
        if key in self.bodies:
            return self.bodies[key]
        if key in self.open:
            raise UnsupportedModelError(
                f"Function '{key.function}' calls itself and passes variables on. graphfreeze follows calls without "
                "cycles only; unroll the recursion before saving."
            )
        self.open.add(key)
        scope = self.scope(key.function)
        handles = {scope.arguments[slot]: (variable, slot) for slot, variable in key.binding}
        body = Body(key)
        for node in scope.in_data_order():
            self._visit(scope, node, handles, body)
        for position, output in enumerate(scope.proto.signature.output_arg):
            found = handles.get(scope.canonical(scope.proto.ret[output.name]))
            if found is not None:
                body.returned[position] = found
                # A loop body hands its captures back; that alone does not need the handle.
        self.open.discard(key)
        self.bodies[key] = body
        return body

    def _visit(self, scope: Scope, node: NodeDef, handles: dict[str, tuple[int, int]], body: Body) -> None:
        taken = [
            (i, *handles[c])
            for i, text in enumerate(scope.data_inputs(node))
            if (c := scope.canonical(text)) in handles
        ]
        if not taken:
            return
        if node.op in CALLS:
            self._call(scope, node, taken, handles, body)
            return
        for index, variable, slot in taken:
            match use_of(node.op):
                case Use.READ if index == 0:
                    access = read_access(scope, node, READS[node.op], self.captured.get(scope.name, frozenset()))
                    body.reads.append(Read(variable, slot, node.name, node.op, access))
                    if access.path is Access.SHAPE:
                        body.kept.add(slot)
                case Use.FORWARD:
                    handles[scope.ref(node.name, node.op)] = (variable, slot)
                case Use.INERT:
                    body.kept.add(slot)
                case Use.WRITE:
                    restores = node.op == "AssignVariableOp" and is_restored(scope, node)
                    found = body.restores if restores else body.writes
                    found.append(Write(variable, slot, node.name, node.op, index))
                    body.kept.add(slot)
                case _:
                    self._not_followed(body, node, variable, slot, "is in no table of ops that take a variable")

    def _call(
        self,
        scope: Scope,
        node: NodeDef,
        taken: list[tuple[int, int, int]],
        handles: dict[str, tuple[int, int]],
        body: Body,
    ) -> None:
        op = CALLS[node.op]
        start = op.skip + (len(attr_of(node, op.skip_types).list.type) if op.skip_types else 0)
        passed = len(attr_of(node, op.types).list.type)
        for position, variable, slot in taken:
            if not start <= position < start + passed:
                self._not_followed(body, node, variable, slot, "takes it otherwise than as an argument of its function")
        taken = [t for t in taken if start <= t[0] < start + passed]
        callees: list[Callee] = []
        offset = 0
        for attribute, index, name in _function_names(node, op):
            if name not in self.functions:
                raise UnsupportedModelError(
                    f"Node '{node.name}' ({node.op}) in {_where(scope)} calls function '{name}', which the model's "
                    "library does not hold. The file is damaged or incomplete; save the model again."
                )
            offset = len(self.functions[name].signature.input_arg) - passed if op.tail else 0
            binding = tuple(sorted((i - start + offset, v) for i, v, _ in taken))
            callees.append(Callee(attribute, index, Key(name, binding)))
        slots = tuple(sorted((i - start + offset, slot) for i, _, slot in taken))
        inner = [self.body(c.key) for c in callees]
        if op.kind is CallKind.LOOP:
            # Else the next round would run on another variable than this one.
            for slot, variable in callees[-1].key.binding:
                if inner[-1].returned.get(slot) != (variable, slot):
                    self._not_followed(body, node, variable, dict(slots)[slot], "does not hand it on to its next round")
            inner = inner[-1:]
        body.calls.append(Call(node.name, op, start, offset, slots, tuple(callees)))
        self._returned(scope, node, inner, dict(slots), handles, body)

    def _returned(
        self,
        scope: Scope,
        node: NodeDef,
        inner: list[Body],
        outer: dict[int, int],
        handles: dict[str, tuple[int, int]],
        body: Body,
    ) -> None:
        """Follows handles that a call gives back; such a slot must stay a handle."""
        for index, ref in scope.outputs(node):
            given = {callee.returned.get(index) for callee in inner}
            for callee in inner:
                if index not in callee.returned:
                    continue
                variable, slot = callee.returned[index]
                callee.kept.add(slot)
                body.kept.add(outer[slot])
                handles[ref] = (variable, outer[slot])
                if len(given) > 1:
                    self._not_followed(body, node, variable, outer[slot], "gives back this variable or another")

    def _not_followed(self, body: Body, node: NodeDef, variable: int, slot: int, why: str) -> None:
        body.unknown.append(Unknown(variable, node.name, node.op, why))
        body.kept.add(slot)


def _captured_nodes(meta: MetaGraphDef) -> dict[str, set[str]]:
    """Function -> nodes whose outputs gradient functions have captured."""
    found: dict[str, set[str]] = {}
    for node in meta.object_graph_def.nodes:
        if node.WhichOneof("kind") == "captured_tensor":
            tensor = node.captured_tensor
            found.setdefault(tensor.concrete_function, set()).add(tensor.name.split(":")[0])
    return found


def _where(scope: Scope) -> str:
    return f"function '{scope.name}'" if scope.in_function else "the main graph"


def _function_names(node: NodeDef, op: CallOp) -> Iterator[tuple[str, int | None, str]]:
    for attribute in op.functions:
        value = attr_of(node, attribute)
        if value.WhichOneof("value") == "func":
            yield attribute, None, value.func.name
        else:
            yield from ((attribute, i, f.name) for i, f in enumerate(value.list.func))
