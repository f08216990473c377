"""Takes our inputs out of one call again: handles of our variables, and values that were merged in front of it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from graphfreeze.graph.attrs import CALL, REPLACES, ROUNDS
from graphfreeze.graph.ops import CALLS, CallKind, CallOp
from graphfreeze.graph.refs import attr_of, is_control, parse_ref, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.passes.undo_signature import remove_entries
from graphfreeze.savedmodel import DT_RESOURCE
from graphfreeze.savedmodel.protos import AttrValue, NodeDef, TensorShapeProto


@dataclass(frozen=True, slots=True)
class Change:
    """How the arguments of a function change back."""

    dropped: frozenset[int] = frozenset()
    """Positions that go: handles of our variables, and values that were appended."""
    handles: tuple[tuple[int, str], ...] = ()
    """Positions that turn from values into handles again, each with the note of what the function said of it."""


@dataclass(frozen=True, slots=True)
class MarkedCall:
    """A node that runs functions, and what the rewrite noted on it."""

    scope: Scope
    node: NodeDef
    op: CallOp
    mark: dict[str, Any]
    offset: int
    """Argument position of the first input that is passed on."""

    @property
    def start(self) -> int:
        """The first input that is passed on."""
        return self.op.skip + (len(attr_of(self.node, self.op.skip_types).list.type) if self.op.skip_types else 0)

    def dropped(self, ours: Collection[str]) -> frozenset[int]:
        """Of the inputs that are passed on, those that go."""
        count = len(attr_of(self.node, self.op.types).list.type)
        first = self.mark.get("first", count)
        values = range(first, first + self.mark.get("values", 0))
        return frozenset(i for i in range(count) if i in values or producer(self.node.input[self.start + i]) in ours)

    def change(self, place: str, dropped: Collection[int]) -> Change:
        """What that means for the function at a place."""
        notes = self.mark.get("notes", {}).get(place, {})
        handles = tuple((int(slot), note) for slot, note in sorted(notes.items()))
        return Change(frozenset(i + self.offset for i in dropped), handles)

    def restore(self, dropped: Collection[int]) -> None:
        """Changes the node back; the functions that it names are the caller's business."""
        if CALL in self.node.attr:
            self._pass_handles()
            del self.node.attr[CALL]
        if ROUNDS in self.node.attr:
            self.node.attr["parallel_iterations"].i = self.node.attr[ROUNDS].i
            if self.node.attr[ROUNDS].i < 0:
                del self.node.attr["parallel_iterations"]
            del self.node.attr[ROUNDS]
        if dropped:
            self._drop(dropped)

    def take_back(self, written: Collection[int]) -> set[str]:
        """Says no more of these inputs that the functions only read them; returns their edges."""
        if "_read_only_resource_inputs" in self.node.attr:
            read_only = self.node.attr["_read_only_resource_inputs"].list
            read_only.i[:] = [i for i in read_only.i if i not in written]
        return {self.node.input[i] for i in written}

    def _pass_handles(self) -> None:
        """In the slots that took a value, passes the handle again that the value was read from."""
        node = self.node
        for slot in self.mark["inplace"]:
            index = slot - self.offset + self.start
            node.input[index] = _handle_behind(self.scope, node.input[index])
            node.attr[self.op.types].list.type[slot - self.offset] = DT_RESOURCE
            for name in ("output_shapes", "_output_shapes") if self.op.kind is CallKind.LOOP else ():
                if slot < len(attr_of(node, name).list.shape):
                    node.attr[name].list.shape[slot].CopyFrom(TensorShapeProto())
        if read_only := self.mark["read_only"]:
            indices = sorted({*node.attr["_read_only_resource_inputs"].list.i, *read_only})
            node.attr["_read_only_resource_inputs"].list.i[:] = indices

    def _drop(self, dropped: Collection[int]) -> None:
        node, start = self.node, self.start
        remove_entries(node.input, [start + i for i in dropped])
        remove_entries(node.attr[self.op.types].list.type, dropped)
        if "_read_only_resource_inputs" in node.attr:
            gone = [start + i for i in dropped]
            kept = [i for i in node.attr["_read_only_resource_inputs"].list.i if i not in gone]
            node.attr["_read_only_resource_inputs"].list.i[:] = [i - sum(g < i for g in gone) for i in kept]
        if self.op.kind is not CallKind.LOOP:
            return
        for name in ("output_shapes", "_output_shapes"):
            if attr_of(node, name).list.shape:
                remove_entries(node.attr[name].list.shape, dropped)
        if "_num_original_outputs" in node.attr:
            node.attr["_num_original_outputs"].i -= len(dropped)
        _shift_outputs(self.scope, node.name, dropped)


def marked_call(scope: Scope, node: NodeDef, arguments: int | None) -> MarkedCall:
    """The call that ``node`` makes, to functions that take ``arguments`` arguments (None where they are unknown)."""
    op = CALLS[node.op]
    passed = len(attr_of(node, op.types).list.type)
    offset = arguments - passed if op.tail and arguments is not None else 0
    return MarkedCall(scope, node, op, json.loads(node.attr[CALL].s) if CALL in node.attr else {}, offset)


def function_values(node: NodeDef) -> Iterator[tuple[str, AttrValue]]:
    """(place, function) of each function that a node runs; a place is ``attribute:index``."""
    for attribute in CALLS[node.op].functions:
        if attribute in node.attr:
            value = node.attr[attribute]
            functions = [value.func] if value.WhichOneof("value") == "func" else value.list.func
            yield from ((f"{attribute}:{i}", f) for i, f in enumerate(functions))


def _handle_behind(scope: Scope, ref: str) -> str:
    """The handle that a merged value in front of a loop was read from; a handed-on slot is its own handle again."""
    node = scope.nodes.get(producer(ref))
    if node is None or REPLACES not in node.attr:
        return ref
    handle: str = scope.nodes[producer(node.attr[REPLACES].s.decode())].input[0]
    return handle


def _shift_outputs(scope: Scope, name: str, dropped: Collection[int]) -> None:
    """Outputs of a loop behind a dropped one move up."""
    for user in scope.node_list:
        for i, text in enumerate(user.input):
            if not is_control(text):
                user.input[i] = _shifted(scope, text, name, dropped)
    if scope.in_function:
        for result, text in list(scope.proto.ret.items()):
            scope.proto.ret[result] = _shifted(scope, text, name, dropped)


def _shifted(scope: Scope, text: str, name: str, dropped: Collection[int]) -> str:
    if producer(text) != name:
        return text
    ref = parse_ref(text, in_function=scope.in_function)
    before = sum(d < ref.index for d in dropped)
    return type(ref)(ref.node, ref.output, ref.index - before).text if before else text
