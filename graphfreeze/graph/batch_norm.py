"""Finds batch norms: by their ops and by what is written into their moving statistics, never by names.

A fused one is one op, an unfused one the arithmetic of ``tf.nn.batch_normalization`` (nn_impl.py of TensorFlow).
Where it takes statistics of the batch, the variables that store them are those into which a moving average of the
batch's mean and variance is written. To recognise another form, add a row to ``RECOGNISERS``.

Covered scopes: one at a time; an op and the writes of its statistics stand in the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from graphfreeze.graph.attrs import attr_bytes
from graphfreeze.graph.norms import FUSED, FUSED_GRADIENT, FUSED_OUTPUTS, Norm, is_training
from graphfreeze.graph.refs import parse_ref, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.uses import Body
from graphfreeze.graph.variables import Variable
from graphfreeze.savedmodel.protos import NodeDef

_HANDED_ON = frozenset(
    ("Identity", "Cast", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "BroadcastTo", "Enter", "Switch")
)
"""Ops whose first input is the value, perhaps in another shape or dtype."""
_SAME_SHAPE = frozenset(("Cast", "Identity"))
_SUMMED = frozenset(("Cast", "Identity", "Reshape", "Sum"))
"""What stands between a gradient and its broadcast form."""
_AVERAGED = _HANDED_ON | {"Add", "AddV2", "Sub", "Mul", "Neg", "Select", "SelectV2", "Merge"}
"""The arithmetic of a moving average."""
_MOVES = frozenset(
    ("AssignVariableOp", "AssignSubVariableOp", "AssignAddVariableOp", "Assign", "AssignSub", "AssignAdd")
)
_CONSTANT = frozenset(("Const", "Fill", "OnesLike", "ZerosLike"))
_MEAN, _VARIANCE = 0, 1


@dataclass(frozen=True, slots=True)
class _Found:
    """A norm before its moving statistics are known, and the tensors that hold those of the batch."""

    norm: Norm
    batch: Mapping[tuple[str, int], int]
    """(node, output) -> mean or variance."""


def has_norm_ops(scope: Scope) -> bool:
    """Whether a scope can hold a batch norm at all."""
    return any(node.op == "Rsqrt" or FUSED.fullmatch(node.op) for node in scope.node_list)


def find_norms(scope: Scope, body: Body, variables: Sequence[Variable]) -> list[Norm]:
    """Every batch norm of one scope that has a gamma or a beta."""
    return _Finder(scope, body, variables).find()


class _Finder:
    def __init__(self, scope: Scope, body: Body, variables: Sequence[Variable]) -> None:
        self.scope, self.body = scope, body
        self.values = {r.node: r.variable for r in body.reads if r.op in ("ReadVariableOp", "Identity")}
        if not scope.in_function:
            self.values |= {producer(h): v.index for v in variables for h in v.handles}

    def find(self) -> list[Norm]:
        found = [f for node in self.scope.node_list for recognise in RECOGNISERS if (f := recognise(self, node))]
        stored = self._stored(found)
        return [self._with_statistics(f.norm, stored.get(f.norm.node, {})) for f in found]

    @staticmethod
    def _with_statistics(norm: Norm, stored: Mapping[int, int]) -> Norm:
        if not norm.training:
            return norm
        return replace(norm, mean=stored.get(_MEAN), variance=stored.get(_VARIANCE))

    def _stored(self, found: Sequence[_Found]) -> dict[str, dict[int, int]]:
        """Norm -> variables that moving averages of its batch's statistics are written into."""
        batch = {edge: (f.norm.node, which) for f in found for edge, which in f.batch.items()}
        stored: dict[str, dict[int, int]] = {}
        for write in self.body.writes if batch else ():
            if write.op not in _MOVES or write.index != 0:
                continue
            taken, variables = self._leaves(self.scope.data_inputs(self.scope.nodes[write.node])[1], batch)
            moved = write.op not in ("Assign", "AssignVariableOp") or write.variable in variables
            if len(taken) == 1 and (moved or self._is_running(taken)):
                node, which = taken.pop()
                stored.setdefault(node, {}).setdefault(which, write.variable)
        return stored

    def _is_running(self, taken: set[tuple[str, int]]) -> bool:
        """A fused op with a factor of its own gives out the moving average, not the statistics of the batch."""
        return all(FUSED.fullmatch(self.scope.nodes[node].op) for node, _ in taken)

    def _leaves(
        self, text: str, batch: Mapping[tuple[str, int], tuple[str, int]]
    ) -> tuple[set[tuple[str, int]], set[int]]:
        """What a written value is computed from by a moving average's arithmetic."""
        taken: set[tuple[str, int]] = set()
        variables: set[int] = set()
        seen: set[str] = set()
        pending = [text]
        while pending:
            edge = self.edge(pending.pop())
            if edge in batch:
                taken.add(batch[edge])
            elif edge[0] in self.values:
                variables.add(self.values[edge[0]])
            elif (node := self.scope.nodes.get(edge[0])) is not None and node.op in _AVERAGED and edge[0] not in seen:
                seen.add(edge[0])
                inputs = self.scope.data_inputs(node)
                pending += inputs[:1] if node.op in _HANDED_ON else inputs
        return taken, variables

    def edge(self, text: str) -> tuple[str, int]:
        """(node, number of its output)."""
        ref = parse_ref(text, in_function=self.scope.in_function)
        return ref.node, FUSED_OUTPUTS.index(ref.output) if ref.output in FUSED_OUTPUTS else ref.index

    def node(self, text: str, through: frozenset[str] = _SAME_SHAPE) -> NodeDef | None:
        """The node behind an edge, and behind the ops that hand its value on."""
        node = self.scope.nodes.get(producer(text))
        while node is not None and node.op in through and node.name not in self.values:
            node = self.scope.nodes.get(producer(node.input[0]))
        return node

    def variable(self, text: str) -> int | None:
        """The variable that is read there."""
        node = self.node(text, _HANDED_ON)
        return None if node is None else self.values.get(node.name)

    def parameters(self, gamma: str | None, beta: str | None) -> tuple[int | None, int | None] | None:
        """The variables that gamma and beta are; None where one is computed from something else, or both are none."""
        for text in (gamma, beta):
            node = None if text is None else self.node(text, _HANDED_ON)
            if node is not None and node.name not in self.values and node.op not in _CONSTANT:
                return None
        found = (None if gamma is None else self.variable(gamma), None if beta is None else self.variable(beta))
        return None if found == (None, None) else found

    def chain(self, text: str) -> Iterator[tuple[str, int]]:
        """The edges that hold one statistic of the batch, in whatever shape."""
        yield self.edge(text)
        node = self.scope.nodes.get(producer(text))
        while node is not None and node.op in _HANDED_ON:
            yield self.edge(node.input[0])
            node = self.scope.nodes.get(producer(node.input[0]))

    def users(self, text: str) -> list[NodeDef]:
        """The nodes that take a tensor, and those that take it through a cast."""
        found: list[NodeDef] = []
        for use in self.scope.uses(text):
            if use.result is None:
                node = self.scope.nodes[use.node]
                found += self.users(self.scope.ref(node.name, node.op)) if node.op == "Cast" else [node]
        return found

    def leaves_scope(self, text: str) -> bool:
        """Whether the function gives a tensor out."""
        return any(use.result is not None for use in self.scope.uses(text))


def _fused(finder: _Finder, node: NodeDef) -> _Found | None:
    if not FUSED.fullmatch(node.op):
        return None
    inputs = finder.scope.data_inputs(node)
    parameters = finder.parameters(inputs[1], inputs[2])
    if parameters is None:
        return None
    if not is_training(node):
        norm = Norm(node.name, node.op, False, *parameters, finder.variable(inputs[3]), finder.variable(inputs[4]))
        return _Found(norm, {})
    norm = Norm(node.name, node.op, True, *parameters)
    gradients, trouble = _fused_gradients(finder, node)
    batch = {(node.name, 1): _MEAN, (node.name, 2): _VARIANCE}
    return _Found(replace(norm, gradients=gradients, trouble=trouble), batch)


def _fused_gradients(finder: _Finder, node: NodeDef) -> tuple[tuple[str, ...], str]:
    """The gradient ops of a fused norm, and why they cannot be changed."""
    scope = finder.scope
    gradients: dict[str, None] = {}
    for number, output in list(enumerate(FUSED_OUTPUTS))[3:]:
        text = f"{node.name}:{output}:0" if scope.in_function else f"{node.name}:{number}"
        if finder.leaves_scope(text):
            return (), "its gradient is computed in another function"
        for user in finder.users(text):
            if FUSED_GRADIENT.fullmatch(user.op):
                gradients[user.name] = None
            elif user.op not in ("ZerosLike", "Shape"):
                return (), f"node '{user.name}' ({user.op}) takes what it leaves for its gradient"
    for name in gradients:
        layout = attr_bytes(scope.nodes[name], "data_format")
        if layout not in (b"", b"NHWC", b"NDHWC"):
            why = f"with stored statistics TensorFlow has no gradient in the data format {layout.decode()}"
            return (), f"{why} (node '{name}')"
    return tuple(gradients), ""


@dataclass(frozen=True, slots=True)
class _Arithmetic:
    """``x * scale + (beta - mean * scale)`` with ``scale = rsqrt(variance + epsilon) * gamma``."""

    times_x: NodeDef
    times_mean: NodeDef
    scale: str
    inverse: NodeDef
    mean: str
    variance: str
    gamma: str | None
    beta: str | None
    taker: NodeDef
    """The node that takes the mean: the product, or its negation before that."""


def _unfused(finder: _Finder, node: NodeDef) -> _Found | None:
    arithmetic = _arithmetic(finder, node)
    if arithmetic is None:
        return None
    parameters = finder.parameters(arithmetic.gamma, arithmetic.beta)
    if parameters is None:
        return None
    mean, variance = finder.variable(arithmetic.mean), finder.variable(arithmetic.variance)
    if mean is not None and variance is not None:
        return _Found(Norm(node.name, "batch_normalization", False, *parameters, mean, variance), {})
    gradients, takers, trouble = _unfused_gradients(finder, arithmetic)
    epsilon = finder.node(finder.scope.data_inputs(arithmetic.inverse)[0])
    assert epsilon is not None
    taken = (
        (arithmetic.mean, (arithmetic.taker.name, *takers)),
        (arithmetic.variance, (epsilon.name,)),
    )
    norm = Norm(node.name, "batch_normalization", True, *parameters)
    norm = replace(norm, gradients=gradients, taken=taken, trouble=trouble)
    batch = dict.fromkeys(finder.chain(arithmetic.mean), _MEAN)
    return _Found(norm, batch | dict.fromkeys(finder.chain(arithmetic.variance), _VARIANCE))


def _arithmetic(finder: _Finder, node: NodeDef) -> _Arithmetic | None:
    inputs = finder.scope.data_inputs(node)
    if node.op not in ("Add", "AddV2") or len(inputs) != 2:
        return None
    for first, second in (inputs, inputs[::-1]):
        times_x, rest = finder.node(first), finder.node(second)
        if times_x is None or rest is None or times_x.op != "Mul":
            continue
        beta = finder.scope.data_inputs(rest)[0] if rest.op == "Sub" else None
        times_mean = finder.node(finder.scope.data_inputs(rest)[1]) if rest.op == "Sub" else rest
        if times_mean is not None and times_mean.op == "Mul":
            found = _scaled(finder, times_x, times_mean, beta)
            if found is not None:
                return found
    return None


def _scaled(finder: _Finder, times_x: NodeDef, times_mean: NodeDef, beta: str | None) -> _Arithmetic | None:
    for scale, mean in _either(finder, times_mean):
        by = finder.node(scale)
        if by is None or not any(by is finder.node(text) for text, _ in _either(finder, times_x)):
            continue
        for inverse_text, gamma in _either(finder, by) if by.op == "Mul" else ((scale, None),):
            inverse = finder.node(inverse_text)
            if inverse is None or inverse.op != "Rsqrt":
                continue
            total = finder.node(finder.scope.data_inputs(inverse)[0])
            if total is None or total.op not in ("Add", "AddV2"):
                continue
            variance = next((v for v, e in _either(finder, total) if _is_constant(finder, e)), None)
            if variance is None:
                continue
            negated = finder.node(mean)
            taker = negated if beta is None and negated is not None and negated.op == "Neg" else times_mean
            mean = mean if taker is times_mean else finder.scope.data_inputs(taker)[0]
            edge = finder.scope.ref(by.name, by.op)
            return _Arithmetic(times_x, times_mean, edge, inverse, mean, variance, gamma, beta, taker)
    return None


def _either(finder: _Finder, node: NodeDef) -> tuple[tuple[str, str], tuple[str, str]] | tuple[()]:
    """Both inputs of a node, in both orders."""
    inputs = finder.scope.data_inputs(node)
    return ((inputs[0], inputs[1]), (inputs[1], inputs[0])) if len(inputs) == 2 else ()


def _is_constant(finder: _Finder, text: str) -> bool:
    node = finder.node(text)
    return node is None or node.op == "Const"


def _unfused_gradients(finder: _Finder, found: _Arithmetic) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Gradients that lead into the batch's statistics, nodes that compute others from its mean, and trouble.

    A gradient reaches x, the mean and the variance together, so there is one of each for every tape.
    """
    inverse = finder.scope.ref(found.inverse.name, "Rsqrt")
    if finder.leaves_scope(found.scale) or finder.leaves_scope(inverse):
        return (), (), "its gradient is computed in another function"
    into_variance = [n.name for n in finder.users(inverse) if n.op == "RsqrtGrad"]
    into_x: list[str] = []
    into_mean: list[str] = []
    for user in finder.users(found.scale):
        if user.op != "Mul" or user.name in (found.times_x.name, found.times_mean.name):
            continue
        other = [t for t in finder.scope.data_inputs(user) if finder.node(t) is not finder.node(found.scale)]
        (into_mean if other and _is_negated(finder, other[0]) else into_x).append(user.name)
    if not len(into_x) == len(into_mean) == len(into_variance):
        return (), (), "the gradient through the batch's statistics, which the graph computes, is not understood"
    edges = [finder.scope.ref(name, finder.scope.nodes[name].op) for name in (*into_mean, *into_variance)]
    takers = tuple(
        n.name
        for n in finder.users(found.mean)
        if n.op == "Mul" and any(_is_negated(finder, t) for t in finder.scope.data_inputs(n))
    )
    return tuple(edges), takers, ""


def _is_negated(finder: _Finder, text: str) -> bool:
    node = finder.node(text, _SUMMED)
    return node is not None and node.op == "Neg"


RECOGNISERS: tuple[Callable[[_Finder, NodeDef], _Found | None], ...] = (_fused, _unfused)
"""Each says of a node whether a batch norm ends there."""
