"""The two ways in which TensorFlow writes an edge, behind one parser.

A GraphDef writes ``node``, ``node:1`` and ``^node``; a FunctionDef writes ``argument``, ``node:output_name:0`` and
``^node`` (tensorflow/core/framework/function.proto). Everything above this module speaks in ``Ref`` values or in the
canonical text that ``Ref.text`` gives.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphfreeze.graph.ops import output_name
from graphfreeze.savedmodel.protos import AttrValue, Message


@dataclass(frozen=True, slots=True)
class Ref:
    """One data edge: output ``index`` of ``node`` (within the output argument ``output``, in a function).

    ``output`` is None for a GraphDef edge, and "" for a function argument.
    """

    node: str
    output: str | None
    index: int

    @property
    def is_argument(self) -> bool:
        """True for an argument of a function."""
        return self.output == ""

    @property
    def text(self) -> str:
        """The form that stands in ``NodeDef.input``."""
        if self.output is None:
            return self.node if self.index == 0 else f"{self.node}:{self.index}"
        return self.node if self.output == "" else f"{self.node}:{self.output}:{self.index}"


def is_control(text: str) -> bool:
    """True for a control edge, ``^node``."""
    return text.startswith("^")


def parse_ref(text: str, *, in_function: bool) -> Ref:
    """Parses a data edge.

    >>> parse_ref("while:output:3", in_function=True)
    Ref(node='while', output='output', index=3)
    >>> parse_ref("x:1", in_function=False).text
    'x:1'
    """
    head, *rest = text.split(":")
    if not in_function:
        return Ref(head, None, int(rest[0]) if rest else 0)
    if not rest:
        return Ref(head, "", 0)
    return Ref(head, rest[0], int(rest[1]) if len(rest) > 1 else 0)


def make_ref(node: str, op: str, index: int = 0, *, in_function: bool) -> str:
    """The text of output ``index`` of a node whose only output argument is the one in the op table."""
    return Ref(node, output_name(op) if in_function else None, index).text


def producer(text: str) -> str:
    """The node (or argument) that an edge comes from, control edges included.

    >>> producer("^dense/MatMul"), producer("dense/MatMul:product:0")
    ('dense/MatMul', 'dense/MatMul')
    """
    return text.removeprefix("^").split(":", 1)[0]


def attr_of(node: Message, name: str) -> AttrValue:
    """An attribute of a node, or an empty one. Indexing the map itself would add an entry to the message."""
    return node.attr[name] if name in node.attr else AttrValue()
