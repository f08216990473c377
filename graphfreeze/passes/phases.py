"""Gives every phase its own variant of each function and signature, under ``graphfreeze/phases/NAME``.

A variant computes the same, and holds back the gradient of all that its phase does not train, so that this part of the
backward pass is not in its graph. It captures the same variables, held parts included; what its phase trains is
therefore listed by a function ``info`` of the phase, which captures just that.

Covered scopes: the functions that ``public_functions`` finds, and all signatures. Gradient functions of custom
gradients belong to one traced function each, so a model with such functions is refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.attrs import ADDED, bytes_attr
from graphfreeze.graph.callables import concrete_names, public_functions, public_signatures
from graphfreeze.graph.entries import SIGNATURES
from graphfreeze.graph.names import FreshNames
from graphfreeze.graph.ops import CALLS
from graphfreeze.graph.refs import is_control, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.lowering.facts import FORMAT
from graphfreeze.passes.calls import rewire_call
from graphfreeze.passes.info import add_info_function
from graphfreeze.passes.needs import Layout, Mode, layout_of
from graphfreeze.passes.signature import Arguments
from graphfreeze.passes.state import Work
from graphfreeze.passes.variables import hold_child
from graphfreeze.savedmodel import append_node, children
from graphfreeze.savedmodel.protos import Message, NodeDef

if TYPE_CHECKING:
    from graphfreeze.passes.functions import Rewriter

PHASES = "phases"
"""The child of ``graphfreeze`` that holds the phases by name."""
PHASE_FUNCTION = "__inference_phase_graphfreeze_0"


@dataclass(frozen=True, slots=True)
class _Variant:
    """A concrete function of one phase: its name, and the original that it was made from."""

    name: str
    original: Message
    layout: Layout


class PhaseFunctions:
    """The functions of one phase: made while the originals are there, placed when those are replaced."""

    def __init__(self, rewriter: Rewriter) -> None:
        self.rewriter = rewriter
        self.work = rewriter.work
        assert self.work.phase is not None
        self.phase: str = self.work.phase
        self._variants: dict[str, _Variant] = {}
        self._nodes: list[tuple[tuple[str, ...], Message]] = []
        self._signatures: dict[str, Message] = {}
        self._calls: dict[str, dict[str, str]] = {}
        """Signature -> node of the main graph -> the copy of it that belongs to the phase."""

    def make(self) -> None:
        """Builds the variants, and remembers what the model says of the originals."""
        meta = self.work.meta
        self._nodes = [(path, _copied(meta.object_graph_def.nodes[n])) for path, n in public_functions(meta)]
        found = children(meta.object_graph_def, 0).get(SIGNATURES)
        held = {} if found is None else children(meta.object_graph_def, found)
        for key in public_signatures(meta):
            if key in held:
                self._signatures[key] = _copied(meta.object_graph_def.nodes[held[key]])
        for _, node in self._nodes:
            for name in concrete_names(node):
                self._make(name)
        for key, node in self._signatures.items():
            for name in concrete_names(node):
                self._make(name)
            self._calls[key] = self._call(key)

    def _make(self, name: str) -> None:
        key = self.work.trace.roots[name]
        needs = self.rewriter.needs
        layout = layout_of(needs.of(key, Mode.PLAIN)) if needs.touched(key) else Layout()
        new = self.rewriter.build(key, Mode.PLAIN, layout)
        original = _copied(self.work.meta.object_graph_def.concrete_functions[name])
        self._variants[name] = _Variant(new, original, layout)

    def place(self) -> None:
        """Adds objects, concrete functions and signatures."""
        graph = self.work.meta.object_graph_def
        phase = hold_child(graph, (PHASES, self.phase))
        for variant in self._variants.values():
            if variant.name not in graph.concrete_functions:
                concrete = graph.concrete_functions[variant.name]
                concrete.CopyFrom(variant.original)
                concrete.bound_inputs.extend(self.work.stored[s].node_id for s in variant.layout.storages)
        for path, node in self._nodes:
            parent = hold_child(graph, (PHASES, self.phase, *path[:-1])) if len(path) > 1 else phase
            if path[-1] not in children(graph, parent):
                self._append(parent, path[-1], node)
        content = {"format": FORMAT, "phase": self.phase, "loss": self._loss()}
        add_info_function(self.work, phase, PHASE_FUNCTION, json.dumps(content, sort_keys=True).encode())
        self._place_signatures()

    def _loss(self) -> str | None:
        return next(p.loss for p in self.work.plan.phases if p.name == self.phase)

    def _append(self, parent: int, name: str, original: Message) -> None:
        """A function object like the original, naming the variants."""
        _, node = append_node(self.work.meta.object_graph_def, parent, name)
        node.CopyFrom(original)
        del node.children[:]
        del node.dependencies[:]
        if node.WhichOneof("kind") == "function":
            names = [self._variants[n].name for n in original.function.concrete_functions]
            node.function.concrete_functions[:] = names
        else:
            bare = node.bare_concrete_function
            bare.concrete_function_name = self._variants[bare.concrete_function_name].name

    def _place_signatures(self) -> None:
        """``KEY@PHASE``: the object, and in the main graph a call of the variant with placeholders of its own."""
        meta = self.work.meta
        found = children(meta.object_graph_def, 0).get(SIGNATURES)
        for key, node in self._signatures.items():
            assert found is not None
            self._append(found, f"{key}@{self.phase}", node)
            added = meta.signature_def[f"{key}@{self.phase}"]
            added.CopyFrom(meta.signature_def[key])
            for info in (*added.inputs.values(), *added.outputs.values()):
                head, colon, index = info.name.partition(":")
                info.name = f"{self._calls[key].get(head, head)}{colon}{index}"

    def _call(self, key: str) -> dict[str, str]:
        meta = self.work.meta
        scope = Scope(meta.graph_def)
        names = FreshNames(n.name for n in scope.node_list)
        signature = meta.signature_def[key]
        wanted = {producer(info.name) for info in (*signature.inputs.values(), *signature.outputs.values())}
        copies = _copy_nodes(scope, names, wanted, f"graphfreeze/{self.phase}")
        scope = Scope(meta.graph_def)
        arguments = Arguments({}, {s: stored.handle for s, stored in self.work.stored.items()})
        for call in self.work.trace.main.calls:
            if call.node in copies:
                rewire_call(self.rewriter, scope, names, replace(call, node=copies[call.node]), Mode.PLAIN, arguments)
        return copies


def _copy_nodes(scope: Scope, names: FreshNames, wanted: set[str], prefix: str) -> dict[str, str]:
    """Copies calls, placeholders and all between them; handles and the like are shared. Old name -> new name."""
    order: list[NodeDef] = []
    fed: dict[str, bool] = {}

    def visit(name: str) -> bool:
        if name not in fed and name in scope.nodes:
            node = scope.nodes[name]
            fed[name] = node.op == "Placeholder" or node.op in CALLS
            for text in node.input:
                fed[name] |= visit(producer(text))
            if fed[name]:
                order.append(node)
        return fed.get(name, False)

    for name in sorted(wanted):
        visit(name)
    copies = {node.name: names.fresh(f"{prefix}/{node.name}") for node in order}
    for node in order:
        copied = scope.node_list.add()
        copied.CopyFrom(node)
        copied.name = copies[node.name]
        copied.attr[ADDED].CopyFrom(bytes_attr("signature"))
        copied.input[:] = [_renamed(text, copies) for text in node.input]
    return copies


def _renamed(text: str, copies: dict[str, str]) -> str:
    name = producer(text)
    if name not in copies:
        return text
    return f"^{copies[name]}" if is_control(text) else f"{copies[name]}{text.removeprefix(name)}"


def refuse_captured(work: Work) -> None:
    """Refuses models in which a gradient function takes tensors from inside one traced function."""
    for node in work.meta.object_graph_def.nodes:
        if node.WhichOneof("kind") == "captured_tensor":
            function = node.captured_tensor.concrete_function
            raise UnsupportedModelError(
                f"The model cannot have phases: function '{function}' has a custom gradient that takes tensor "
                f"'{node.captured_tensor.name}' from inside it, and a variant for a phase would lose it. Save the "
                "model without custom gradients, or freeze it without phases"
            )


def _copied(message: Message) -> Message:
    return type(message).FromString(message.SerializeToString())
