"""A GraphDef and a FunctionDef seen as one thing: nodes, edges, and who uses what.

Both hold NodeDefs; they differ in how an edge is written and in that a function has arguments and results. A ``Scope``
hides that. It is a snapshot: uses are computed once, so that a rewrite can re-point the uses that were there before it
added nodes of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from graphfreeze.graph.refs import attr_of, is_control, make_ref, parse_ref
from graphfreeze.savedmodel.protos import FunctionDef, GraphDef, NodeDef

MAIN = ""
"""The name under which the main graph stands in a trace."""


@dataclass(frozen=True, slots=True)
class Use:
    """One place that uses a tensor: input ``index`` of ``node``, or the function's result ``result``."""

    node: str
    index: int = -1
    result: str | None = None


class Scope:
    """Nodes and edges of the main graph or of one function."""

    def __init__(self, proto: GraphDef | FunctionDef) -> None:
        self.proto = proto
        self.in_function = isinstance(proto, FunctionDef)
        self.name: str = proto.signature.name if self.in_function else MAIN
        self.node_list = proto.node_def if self.in_function else proto.node
        self.arguments: tuple[str, ...] = tuple(a.name for a in proto.signature.input_arg) if self.in_function else ()

    @cached_property
    def nodes(self) -> dict[str, NodeDef]:
        """The nodes by name."""
        return {node.name: node for node in self.node_list}

    @cached_property
    def _uses(self) -> dict[str, list[tuple[str, int, str | None]]]:
        # The fields of a Use: few of them are ever asked for.
        uses: dict[str, list[tuple[str, int, str | None]]] = defaultdict(list)
        for node in self.node_list:
            name = node.name
            for index, text in enumerate(node.input):
                if not is_control(text):
                    uses[self.canonical(text)].append((name, index, None))
        if self.in_function:
            for result, text in self.proto.ret.items():
                uses[self.canonical(text)].append(("", -1, result))
        return uses

    def canonical(self, text: str) -> str:
        """One text per edge, however it was written."""
        # Nearly all edges are written that way already, and a trace asks this for every one of them.
        colons = text.count(":")
        if not colons or (colons == 2 and self.in_function):
            return text
        return parse_ref(text, in_function=self.in_function).text

    def uses(self, ref: str) -> tuple[Use, ...]:
        """Who used the tensor when this scope was made."""
        return tuple(Use(*fields) for fields in self._uses.get(self.canonical(ref), ()))

    def ref(self, node: str, op: str, index: int = 0) -> str:
        """The edge that comes from output ``index`` of a node."""
        return make_ref(node, op, index, in_function=self.in_function)

    def static_shape(self, ref: str) -> tuple[int, ...] | None:
        """The shape that TensorFlow noted for a tensor, -1 where a dimension is unknown; None for an unknown rank."""
        parsed = parse_ref(ref, in_function=self.in_function)
        if parsed.is_argument:
            if parsed.node not in self.arguments:
                return None
            position = self.arguments.index(parsed.node)
            noted = self.proto.arg_attr.get(position)
            shapes = () if noted is None else attr_of(noted, "_output_shapes").list.shape
        else:
            node = self.nodes.get(parsed.node)
            shapes = () if node is None else attr_of(node, "_output_shapes").list.shape
            if self.in_function and len(shapes) > 1 and parsed.output != "output":
                return None  # which of its outputs that is, only the op's definition says
        if parsed.index >= len(shapes) or shapes[parsed.index].unknown_rank:
            return None
        return tuple(d.size for d in shapes[parsed.index].dim)

    def data_inputs(self, node: NodeDef) -> list[str]:
        """The inputs of a node that carry tensors."""
        return [text for text in node.input if not is_control(text)]

    def outputs(self, node: NodeDef) -> Iterator[tuple[int, str]]:
        """The used outputs of a node whose outputs are one list named ``output`` (calls, If, While)."""
        for ref in list(self._uses):
            parsed = parse_ref(ref, in_function=self.in_function)
            if parsed.node == node.name and not parsed.is_argument:
                yield parsed.index, ref

    def lasting(self, text: str) -> str:
        """An edge for a mark. ``@N`` stands for argument N: saving again keeps places of arguments, not their names."""
        return f"@{self.arguments.index(text)}" if text in self.arguments else text

    def named(self, text: str) -> str:
        """The edge that ``lasting`` wrote down."""
        return self.arguments[int(text[1:])] if text.startswith("@") else text

    def remembered(self, node: NodeDef) -> bytes:
        """A node for a mark."""
        was = NodeDef()
        was.CopyFrom(node)
        was.input[:] = [f"@{self.arguments.index(t)}" if t in self.arguments else t for t in node.input]
        data: bytes = was.SerializeToString(deterministic=True)
        return data

    def recalled(self, data: bytes) -> NodeDef:
        """The node that ``remembered`` wrote down."""
        was = NodeDef.FromString(data)
        was.input[:] = [self.named(t) for t in was.input]
        return was

    def refs_of(self, node: str) -> list[str]:
        """The used outputs of a node."""
        return [ref for ref in self._uses if ref.split(":", 1)[0] == node]

    def in_data_order(self) -> Iterator[NodeDef]:
        """The nodes after the nodes that feed them, so that forwarded handles are known in time."""
        done: set[str] = set()
        known = self.nodes
        for first in self.node_list:
            stack = [first.name]
            while stack:
                name = stack[-1]
                if name in done:
                    stack.pop()
                    continue
                waiting = [
                    p
                    for text in known[name].input
                    if (p := text.partition(":")[0]) not in done and p in known and p not in stack
                ]
                if waiting:
                    stack.extend(waiting)
                    continue
                stack.pop()
                done.add(name)
                yield known[name]
