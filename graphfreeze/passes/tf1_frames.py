"""TF1 control flow around a merge: storages are led into the frame as the variable is, and contexts are told.

A ``while_loop`` or ``cond`` of TF1 is a set of Enter and Switch nodes, and a proto in a collection that lists every
tensor inside. TensorFlow builds gradients by that list, so a tensor of ours that stands inside and is not listed makes
``gradients`` raise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from graphfreeze.graph.attrs import ADDED, SILENCED, bytes_attr
from graphfreeze.graph.names import FreshNames
from graphfreeze.graph.refs import is_control, parse_ref, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.tf1 import GIVES_REF
from graphfreeze.savedmodel.protos import CondContextDef, Message, MetaGraphDef, NodeDef, WhileContextDef

CONTEXTS = {"cond_context": CondContextDef, "while_context": WhileContextDef}
"""Collection -> what it holds."""
_BY_VALUE = {"RefEnter": "Enter", "RefSwitch": "Switch", "RefIdentity": "Identity"}
_LEADS = frozenset({"Enter", "Switch", "Identity", *_BY_VALUE})


@dataclass(frozen=True, slots=True)
class Context:
    """One context, open for changes, and where it is written down."""

    collection: str
    position: int
    root: Message
    """The outermost context around it, which is what the collection holds."""
    proto: Message


class Frames:
    """The frames and contexts of one main graph."""

    def __init__(self, meta: MetaGraphDef, scope: Scope, names: FreshNames) -> None:
        self._meta, self._scope, self._names = meta, scope, names
        self._contexts = list(open_contexts(meta))
        self._led: dict[tuple[str, str], str] = {}
        self._ways: dict[str, tuple[list[tuple[NodeDef, str]], str]] = {}

    def way(self, handle: str) -> list[NodeDef]:
        """The nodes that lead a variable to where ``handle`` is taken, outermost first; none outside control flow."""
        return [node for node, _ in self._followed(handle)[0]]

    def root(self, handle: str) -> str:
        """The node from which an edge has its variable; a write of a ref gives it back."""
        return self._followed(handle)[1]

    def _followed(self, handle: str) -> tuple[list[tuple[NodeDef, str]], str]:
        """Every node on the way with the edge by which it hands on, and where the way begins."""
        if handle not in self._ways:
            found: list[tuple[NodeDef, str]] = []
            text = handle
            node = self._scope.nodes.get(producer(text))
            while node is not None and (node.op in _LEADS or GIVES_REF.fullmatch(node.op)):
                if node.op in _LEADS and SILENCED not in node.attr:
                    found.insert(0, (node, text))
                text = node.input[0]
                node = self._scope.nodes.get(producer(text))
            self._ways[handle] = found, producer(text)
        return self._ways[handle]

    def lead(self, source: str, handle: str, *, by_value: bool) -> str:
        """Leads ``source`` the way that the variable takes to ``handle``; returns the edge that arrives."""
        edge = source
        way = self._followed(handle)[0]
        names = {_tensor(way[0][0].input[0]): _tensor(source)} if way else {}
        for node, taken in way:
            if (node.name, source) not in self._led:
                self._led[node.name, source] = self._copy(node, edge, source, by_value)
            copied = self._led[node.name, source]
            names |= {f"{node.name}:{i}": f"{copied}:{i}" for i in range(2)}
            index = parse_ref(taken, in_function=False).index
            edge = copied if index == 0 else f"{copied}:{index}"
        self._list_way(names)
        return edge

    def is_inside(self, node: str) -> bool:
        """Whether a context holds what the node gives."""
        return any(_holds(c.proto, f"{node}:0") for c in self._contexts)

    def add(self, beside: str, nodes: Iterable[str]) -> None:
        """Lists new nodes, of one output each, in every context that lists the node that they stand beside."""
        added = [f"{node}:0" for node in nodes]
        for context in self._contexts:
            if _holds(context.proto, f"{beside}:0"):
                context.proto.values_def.values.extend(added)

    def write(self) -> None:
        """Writes the contexts back where they were changed."""
        for context in self._contexts:
            held = self._meta.collection_def[context.collection].bytes_list.value
            if type(context.root).FromString(held[context.position]) != context.root:
                held[context.position] = context.root.SerializeToString(deterministic=True)

    def _copy(self, node: NodeDef, edge: str, source: str, by_value: bool) -> str:
        copied = self._scope.node_list.add()
        copied.CopyFrom(node)
        copied.name = self._names.fresh(f"{node.name}/graphfreeze/{producer(source).rsplit('/', 1)[-1]}")
        copied.input[0] = edge
        if by_value:
            copied.op = _BY_VALUE.get(node.op, node.op)
            attrs = self._scope.nodes[producer(source)].attr
            copied.attr["T"].type = attrs["dtype" if "dtype" in attrs else "T"].type
        for noted in ("_class", "_output_shapes"):
            copied.attr.pop(noted, None)
        copied.attr[ADDED].CopyFrom(bytes_attr("lead"))
        return str(copied.name)

    def _list_way(self, names: Mapping[str, str]) -> None:
        """Tells contexts of copies what they know of the tensors on the way, as ``AddValue`` of TensorFlow does."""
        for context in self._contexts:
            values = context.proto.values_def
            held = set(values.values)
            values.values.extend(new for old, new in names.items() if old in held and new not in held)
            for old, inner in list(values.external_values.items()):
                if old in names and inner in names:
                    values.external_values[names[old]] = names[inner]


def open_contexts(meta: MetaGraphDef) -> Iterator[Context]:
    """Every context, those inside of others after them."""
    for name, kind in CONTEXTS.items():
        if name in meta.collection_def:
            for position, data in enumerate(meta.collection_def[name].bytes_list.value):
                root = kind.FromString(data)
                yield from (Context(name, position, root, proto) for proto in _with_nested(root))


def _with_nested(proto: Message) -> Iterator[Message]:
    yield proto
    for nested in proto.nested_contexts:
        yield from _with_nested(getattr(nested, nested.WhichOneof("ctxt")))


def _holds(context: Message, tensor: str) -> bool:
    return tensor in context.values_def.values and tensor not in context.values_def.external_values


def _tensor(text: str) -> str:
    return text if ":" in text else f"{text}:0"


def is_led(way: list[NodeDef]) -> bool:
    """Whether a way crosses into a frame or branch."""
    return any(node.op != "Identity" for node in way)


def repoint_inputs(node: NodeDef, renamed: Mapping[str, str]) -> None:
    """Lets a node take what it took by the new names of the nodes it took it from."""
    for i, text in enumerate(node.input):
        name = producer(text)
        if name in renamed:
            node.input[i] = f"^{renamed[name]}" if is_control(text) else text.replace(name, renamed[name], 1)
