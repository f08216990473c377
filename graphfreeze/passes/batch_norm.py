"""Gives batch norms in training mode their stored statistics, where the plan says ``inference``.

A fused op, and its gradient ops where the graph trains itself, change to ``is_training=False``. The arithmetic of an
unfused one takes the stored mean and variance; a gradient that the graph sends into the batch's becomes zero, because
the stored ones do not depend on x. What the graph writes into the statistics is frozen, so nothing orders these reads.

Covered scopes: one function body at a time, on behalf of pass ``functions``, and the main graph of a TF1 model.
"""

from __future__ import annotations

from graphfreeze.graph.attrs import ADDED, EDITED, REPLACES, attr_bytes, bool_attr, bytes_attr, type_attr
from graphfreeze.graph.names import FreshNames
from graphfreeze.graph.norms import FUSED, Norm
from graphfreeze.graph.refs import attr_of, producer
from graphfreeze.graph.scope import MAIN, Scope, Use
from graphfreeze.graph.uses import Body
from graphfreeze.lowering.emitter import Emitter, GraphEmitter
from graphfreeze.passes.reads import replace_uses
from graphfreeze.passes.state import Work
from graphfreeze.savedmodel import DTYPE_NUMBERS
from graphfreeze.savedmodel.protos import MetaGraphDef, NodeDef
from graphfreeze.selection import BatchNorm

STORED = "statistics"
"""Role of the nodes that bring stored statistics."""
_FLOAT = DTYPE_NUMBERS["float32"]


def use_stored_in_graph(work: Work) -> None:
    """Changes the batch norms of a TF1 main graph."""
    main = work.trace.main
    if main.norms:
        use_stored_statistics(work, Scope(work.meta.graph_def), work.names(), main)


def use_stored_statistics(work: Work, scope: Scope, names: FreshNames, body: Body) -> None:
    """Changes the batch norms of one scope that the plan names."""
    chosen = {n.mean_path for n in work.plan.batch_norms if n.choice == BatchNorm.INFERENCE}
    for norm in body.norms:
        if norm.training and norm.mean is not None and work.trace.variables[norm.mean].path in chosen:
            _Change(work, scope, names, body, norm).run()


def functions_with_stored(meta: MetaGraphDef) -> set[str]:
    """The functions of a rewritten model in which a norm was changed; an empty name for the main graph."""
    scopes = {MAIN: meta.graph_def.node, **{f.signature.name: f.node_def for f in meta.graph_def.library.function}}
    role = STORED.encode()
    return {name for name, nodes in scopes.items() if any(attr_bytes(node, ADDED) == role for node in nodes)}


class _Change:
    def __init__(self, work: Work, scope: Scope, names: FreshNames, body: Body, norm: Norm) -> None:
        self.work, self.scope, self.body, self.norm = work, scope, body, norm
        refs = {h for v in work.trace.variables if v.is_ref for h in v.handles}
        if scope.in_function:
            self.emit = Emitter(scope, names, norm.node)
        else:
            self.emit = GraphEmitter(scope, names, norm.node, values=refs)

    def run(self) -> None:
        """All ops of one batch norm."""
        if FUSED.fullmatch(self.norm.op):
            statistics = [self._stored(v, _FLOAT) for v in self._variables]
            for name in (self.norm.node, *self.norm.gradients):
                self._infer(self.scope.nodes[name], statistics)
            return
        # Before nodes of ours use them too.
        uses = {edge: self.scope.uses(edge) for edge in self.norm.gradients}
        for variable, (edge, takers) in zip(self._variables, self.norm.taken, strict=True):
            self._replace(variable, edge, [self.scope.nodes[name] for name in takers])
        for edge in self.norm.gradients:
            self._stop(edge, uses[edge])

    @property
    def _variables(self) -> tuple[int, int]:
        assert self.norm.mean is not None
        assert self.norm.variance is not None
        return self.norm.mean, self.norm.variance

    def _stored(self, index: int, dtype: int) -> str:
        variable = self.work.trace.variables[index]
        own = DTYPE_NUMBERS[variable.dtype]
        value = self.emit.read(self._handle(index), own, variable.shape, STORED)
        return value if own == dtype else self.emit.cast(value, own, dtype)

    def _handle(self, index: int) -> str:
        if not self.scope.in_function:
            return self.work.trace.variables[index].handles[0]
        return self.scope.arguments[next(w.slot for w in self.body.writes if w.variable == index)]

    def _infer(self, node: NodeDef, statistics: list[str]) -> None:
        """Inputs 3 and 4 are the statistics, of the forward op and of its gradient."""
        was = self.scope.remembered(node)
        node.input[3:5] = statistics
        node.attr["is_training"].CopyFrom(bool_attr(False))
        node.attr[EDITED].CopyFrom(bytes_attr(was))

    def _replace(self, index: int, edge: str, takers: list[NodeDef]) -> None:
        dtype = attr_of(takers[0], "T").type
        value = self._stored(index, dtype)
        given, shape = self.scope.static_shape(edge), self.work.trace.variables[index].shape
        if given is not None and shape is not None and len(given) != len(shape):
            value = self.emit.reshape(value, dtype, given)
        last = self.emit.identity(value, dtype, STORED)
        self.emit.node_of(last).attr[REPLACES].CopyFrom(bytes_attr(self.scope.lasting(edge)))
        for node in takers:
            for i, text in enumerate(node.input):
                if self.scope.canonical(text) == self.scope.canonical(edge):
                    node.input[i] = last

    def _stop(self, edge: str, uses: tuple[Use, ...]) -> None:
        dtype = attr_of(self.scope.nodes[producer(edge)], "T").type
        zero = self.emit.op("ZerosLike", [edge], {"T": type_attr(dtype)}, STORED)
        self.emit.node_of(zero).attr[REPLACES].CopyFrom(bytes_attr(edge))
        replace_uses(self.scope, uses, edge, zero)
