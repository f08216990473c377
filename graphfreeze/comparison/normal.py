"""Functions and nodes in a form in which what TensorFlow counts anew at every save does not show."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from graphfreeze.graph.refs import attr_of
from graphfreeze.savedmodel import DT_RESOURCE, DT_STRING
from graphfreeze.savedmodel.protos import FunctionDef, Message, NodeDef, TrackableObjectGraph

_COUNTED_ARGUMENT = re.compile(r"unknown(_\d+)?|.*_\d+___redundant_placeholder\d+")
_OUTPUT_TYPES = {
    **dict.fromkeys(("While", "StatelessWhile"), "T"),
    **dict.fromkeys(("If", "StatelessIf", "Case", "StatelessCase"), "Tout"),
}
"""Attribute that lists the outputs of a loop or branch."""
_COUNT = re.compile(r"(_\d+)+\Z")
_ADDRESS = re.compile(rb"0x[0-9a-f]+|(_load(_\d+)+)+")
_NUMBERED_NAME = re.compile(rb"\A(input_)?\d+\Z")
_FUNCTION_NAMES = ("forward_function_name", "backward_function_name", "_gradient_op_type")


@dataclass(frozen=True, slots=True)
class NormalNode:
    """A node. ``callees`` are the functions that it runs, in the order of its attributes."""

    op: str
    inputs: tuple[str, ...]
    device: str
    attributes: Mapping[str, bytes]
    callees: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NormalFunction:
    """A function but its name."""

    arguments: tuple[tuple[str, bytes], ...]
    results: tuple[tuple[str, int, str], ...]
    nodes: Mapping[str, NormalNode]
    rest: Mapping[str, bytes]
    """Attributes, attributes of arguments, and all other fields."""


class Normaliser:
    """Puts the functions of one library into normal form."""

    def __init__(self, functions: Collection[str], gradients: Mapping[str, str]) -> None:
        self.functions = frozenset(functions)
        self.gradients = gradients
        """Registered op type -> gradient function."""

    def node(self, node: NodeDef, rename: Callable[[str], str] = str) -> NormalNode:
        """A node, its inputs through ``rename``; control inputs have no order."""
        data = tuple(rename(text) for text in node.input if not text.startswith("^"))
        control = tuple(sorted(text for text in node.input if text.startswith("^")))
        callees: list[str] = []
        node = _without_lost_outputs(node)
        attributes = {key: self._attribute(key, node.attr[key], callees) for key in sorted(node.attr)}
        return NormalNode(node.op, data + control, node.device, attributes, tuple(callees))

    def function(self, function: FunctionDef) -> NormalFunction:
        """A function; arguments that are counted are called by their position."""
        signature = function.signature
        names: dict[str, str] = {}
        arguments: list[tuple[str, bytes]] = []
        for i, argument in enumerate(signature.input_arg):
            counted = argument.type == DT_RESOURCE or _COUNTED_ARGUMENT.fullmatch(argument.name)
            names[argument.name] = f"#{i}" if counted else argument.name
            arguments.append((names[argument.name], _without_name(argument)))

        def rename(text: str) -> str:
            return names.get(text, text)

        results = [
            (f"#{i}" if r.type == DT_RESOURCE else r.name, int(r.type), rename(function.ret[r.name]))
            for i, r in enumerate(signature.output_arg)
        ]
        nodes = {n.name: self.node(n, rename) for n in function.node_def}
        return NormalFunction(tuple(arguments), tuple(results), nodes, self._rest(function))

    def _rest(self, function: FunctionDef) -> dict[str, bytes]:
        rest = {f"attribute {k}": self._attribute(k, function.attr[k], []) for k in function.attr}
        for i in function.arg_attr:
            for key, value in function.arg_attr[i].attr.items():
                rest[f"argument {i} {key}"] = self._attribute(key, value, [])
        control = sorted(f"{k}={v}" for k, v in function.control_ret.items())
        rest["control results"] = "\n".join([*control, *sorted(function.signature.control_output)]).encode()
        other = FunctionDef()
        other.signature.CopyFrom(function.signature)
        for field in ("name", "input_arg", "output_arg", "control_output"):
            other.signature.ClearField(field)
        rest["signature"] = other.SerializeToString(deterministic=True)
        return rest

    def _attribute(self, key: str, value: Message, callees: list[str]) -> bytes:
        found = list(functions_in(value))
        if found:
            callees += [f.name for f in found]
            value = _copy(value)
            for function in functions_in(value):
                function.name = stem(function.name) if function.name not in self.functions else ""
            return bytes(value.SerializeToString(deterministic=True))
        if value.WhichOneof("value") == "s":
            if key in _FUNCTION_NAMES and (name := self.gradients.get(value.s.decode())) is not None:
                callees.append(name)
            return self._text(key, value.s)
        return bytes(value.SerializeToString(deterministic=True))

    def _text(self, key: str, text: bytes) -> bytes:
        if key == "shared_name":
            return b"s:" + _ADDRESS.sub(b"#", text)
        if key == "_user_specified_name":
            return b"s:" + _NUMBERED_NAME.sub(b"#", text)
        name = text.decode("utf-8", "replace")
        if name in self.functions or key in _FUNCTION_NAMES:
            return b"s:" + stem(name.split("-")[0]).encode()
        return b"s:" + text


def functions_in(value: Message) -> Iterator[Message]:
    """The functions that an attribute names."""
    match value.WhichOneof("value"):
        case "func":
            yield value.func
        case "list":
            yield from value.list.func


def stem(name: str) -> str:
    """A function's name without its count."""
    return _COUNT.sub("", name)


def opened(node: NodeDef) -> NodeDef:
    """A node whose constant is a serialised object graph, with its bytes in one fixed order; any other as it is."""
    if node.op != "Const" or node.attr["dtype"].type != DT_STRING or len(node.attr["value"].tensor.string_val) != 1:
        return node
    data = node.attr["value"].tensor.string_val[0]
    try:
        graph = TrackableObjectGraph.FromString(data)
    except Exception:  # DecodeError, whichever implementation of protobuf raises it
        return node
    if not graph.nodes:
        return node
    node = _copy(node)
    node.attr["value"].tensor.string_val[0] = graph.SerializeToString(deterministic=True)
    return node


def _without_lost_outputs(node: NodeDef) -> NodeDef:
    """A loop or branch without shapes of outputs that it has not: TensorFlow adds some for a gradient."""
    outputs = len(attr_of(node, _OUTPUT_TYPES[node.op]).list.type) if node.op in _OUTPUT_TYPES else 0
    if not outputs or "_output_shapes" not in node.attr:
        return node
    node = _copy(node)
    del node.attr["_output_shapes"].list.shape[outputs:]
    return node


def _copy(message: Message) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _without_name(argument: Message) -> bytes:
    copy = _copy(argument)
    copy.ClearField("name")
    return bytes(copy.SerializeToString(deterministic=True))
