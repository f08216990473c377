"""Takes merges, captures and passed values out of functions again, from the marks on their nodes alone.

The inverse of pass ``functions``. It goes by what the graph says now, not by what was written once: after training the
model may have been saved again (all functions renamed) or wrapped in functions of the user's, whose loops and calls then
hand our variables on; those inputs go, and whatever else the user added stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.attrs import ADDED, CALL, CHANGED, REPLACES
from graphfreeze.graph.names import original_function_name
from graphfreeze.graph.ops import CALLS, CallKind, CallOp
from graphfreeze.graph.refs import attr_of, is_control, parse_ref, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.passes.marks import in_function
from graphfreeze.passes.undo_signature import drop_arguments, remove_entries, restore_handle
from graphfreeze.savedmodel import DT_RESOURCE
from graphfreeze.savedmodel.protos import AttrValue, FunctionDef, NodeDef, TensorShapeProto


@dataclass(frozen=True, slots=True)
class Change:
    """How the arguments of a function change back."""

    dropped: frozenset[int] = frozenset()
    """Positions that go: handles of our variables, and values that were appended."""
    handles: tuple[tuple[int, str], ...] = ()
    """Positions that turn from values into handles again, each with the note of what the function said of it."""


class Undo:
    """Rebuilds functions, each once per change."""

    def __init__(self, functions: dict[str, FunctionDef]) -> None:
        self.functions = functions
        self.built: dict[tuple[str, Change], str] = {}
        self.variants: dict[str, list[FunctionDef]] = {}
        self._touched: dict[str, bool] = {}

    def touched(self, name: str) -> bool:
        """Whether a function, or one that it calls, holds a mark."""
        if name not in self._touched:
            self._touched[name] = False  # a cycle ends here
            function = self.functions[name]
            inner = (n for node in function.node_def if node.op in CALLS for n in _called(node))
            self._touched[name] = in_function(function) or any(self.touched(n) for n in inner if n in self.functions)
        return self._touched[name]

    def build(self, name: str, change: Change) -> str:
        """The name of the function to call instead of ``name``."""
        if name not in self.functions or (change == Change() and not self.touched(name)):
            return name
        if (name, change) not in self.built:
            self.built[name, change] = self._build(name, change)
        return self.built[name, change]

    def _build(self, name: str, change: Change) -> str:
        function = FunctionDef()
        function.CopyFrom(self.functions[name])
        scope = Scope(function)
        ours = {scope.arguments[i] for i in change.dropped}
        for node in scope.node_list:
            if node.op in CALLS:
                self.undo_call(scope, node, ours)
        _restore_changed(scope)
        _remove_added(scope, ours)
        for position, note in change.handles:
            restore_handle(scope, position, note)
        drop_arguments(function, change.dropped)
        return self._place(name, function)

    def _place(self, old: str, function: FunctionDef) -> str:
        """Gives the function its original name, or a free one where another function has that."""
        wanted = original_function_name(old)
        for n in range(len(self.functions) + 2):
            name = wanted if n == 0 else f"{wanted}_{n}"
            function.signature.name = name
            rivals = [f for fs in self.variants.values() for f in fs if f.signature.name == name]
            rivals += [self.functions[name]] if name in self.functions and name != old else []
            if not rivals:
                self.variants.setdefault(old, []).append(function)
                return name
            if any(rival == function for rival in rivals):
                return name
        raise AssertionError(old)

    def undo_call(self, scope: Scope, node: NodeDef, ours: set[str]) -> None:
        """Takes our inputs out of one call, and calls the restored functions."""
        op = CALLS[node.op]
        mark = json.loads(node.attr[CALL].s) if CALL in node.attr else {}
        start = op.skip + (len(attr_of(node, op.skip_types).list.type) if op.skip_types else 0)
        passed = len(attr_of(node, op.types).list.type)
        first_value = passed - mark.get("storages", 0) - mark.get("values", 0)
        dropped = {
            i
            for i in range(passed)
            if producer(node.input[start + i]) in ours or first_value <= i < passed - mark.get("storages", 0)
        }
        if not scope.in_function:
            dropped = {i for i in range(passed) if producer(node.input[start + i]) in ours}
        names = list(_called(node))
        offset = len(self.functions[names[0]].signature.input_arg) - passed if op.tail and names else 0
        for place, value in _function_values(node, op):
            notes = mark.get("notes", {}).get(place, {})
            handles = tuple((int(slot), note) for slot, note in sorted(notes.items()))
            value.name = self.build(value.name, Change(frozenset(i + offset for i in dropped), handles))
        if CALL in node.attr:
            _handles_back(scope, node, op, start, offset, mark)
            del node.attr[CALL]
        if dropped:
            _drop_inputs(scope, node, op, start, dropped)


def _called(node: NodeDef) -> Iterator[str]:
    yield from (value.name for _, value in _function_values(node, CALLS[node.op]))


def _function_values(node: NodeDef, op: CallOp) -> Iterator[tuple[str, AttrValue]]:
    """(place, function) of each function attribute; a place is ``attribute:index``."""
    for attribute in op.functions:
        if attribute not in node.attr:
            continue
        value = node.attr[attribute]
        functions = [value.func] if value.WhichOneof("value") == "func" else value.list.func
        yield from ((f"{attribute}:{i}", f) for i, f in enumerate(functions))


def _handles_back(scope: Scope, node: NodeDef, op: CallOp, start: int, offset: int, mark: dict[str, object]) -> None:
    """In the slots that took a value, passes the handle again that the value was read from."""
    for slot in mark["inplace"]:  # type: ignore[attr-defined]
        index = slot - offset + start
        node.input[index] = _handle_behind(scope, node.input[index])
        node.attr[op.types].list.type[slot - offset] = DT_RESOURCE
        if op.kind is CallKind.LOOP:
            for name in ("output_shapes", "_output_shapes"):
                if slot < len(attr_of(node, name).list.shape):
                    node.attr[name].list.shape[slot].CopyFrom(TensorShapeProto())
    read_only = mark.get("read_only", ())
    if read_only:
        indices = sorted({*node.attr["_read_only_resource_inputs"].list.i, *read_only})  # type: ignore[misc]
        node.attr["_read_only_resource_inputs"].list.i[:] = indices


def _handle_behind(scope: Scope, ref: str) -> str:
    """The handle that a merged value in front of a loop was read from; a handed-on slot is its own handle again."""
    node = scope.nodes.get(producer(ref))
    if node is None or REPLACES not in node.attr:
        return ref
    read = scope.nodes[producer(node.attr[REPLACES].s.decode())]
    return read.input[0]


def _drop_inputs(scope: Scope, node: NodeDef, op: CallOp, start: int, dropped: set[int]) -> None:
    remove_entries(node.input, {start + i for i in dropped})
    remove_entries(node.attr[op.types].list.type, dropped)
    if "_read_only_resource_inputs" in node.attr:
        gone = sorted(start + i for i in dropped)
        kept = [i for i in node.attr["_read_only_resource_inputs"].list.i if i not in gone]
        node.attr["_read_only_resource_inputs"].list.i[:] = [i - sum(g < i for g in gone) for i in kept]
    if op.kind is not CallKind.LOOP:
        return
    for name in ("output_shapes", "_output_shapes"):
        if attr_of(node, name).list.shape:
            remove_entries(node.attr[name].list.shape, dropped)
    if "_num_original_outputs" in node.attr:
        node.attr["_num_original_outputs"].i -= len(dropped)
    _shift_outputs(scope, node.name, dropped)


def _shift_outputs(scope: Scope, name: str, dropped: set[int]) -> None:
    """Outputs of a loop behind a dropped one move up."""
    for user in scope.node_list:
        for i, text in enumerate(user.input):
            if not is_control(text):
                user.input[i] = _shifted(scope, text, name, dropped)
    if scope.in_function:
        for result, text in scope.proto.ret.items():
            scope.proto.ret[result] = _shifted(scope, text, name, dropped)


def _shifted(scope: Scope, text: str, name: str, dropped: set[int]) -> str:
    if producer(text) != name:
        return text
    ref = parse_ref(text, in_function=scope.in_function)
    before = sum(d < ref.index for d in dropped)
    return type(ref)(ref.node, ref.output, ref.index - before).text if before else text


def _restore_changed(scope: Scope) -> None:
    """Turns nodes that take a value into the reading nodes that they were; consumers follow the output's name."""
    for node in scope.node_list:
        if CHANGED not in node.attr:
            continue
        was = NodeDef.FromString(node.attr[CHANGED].s)
        raw, restored = scope.ref(node.name, node.op), scope.ref(node.name, was.op)
        data = [text for text in node.input if not is_control(text)][: sum(not is_control(t) for t in was.input)]
        controls = [text for text in node.input if is_control(text)]
        shapes = node.attr["_output_shapes"].SerializeToString() if "_output_shapes" in node.attr else None
        node.op = was.op
        del node.input[:]
        node.input.extend([*data, *controls])
        node.attr.clear()
        for key, value in was.attr.items():
            node.attr[key].CopyFrom(value)
        if shapes is not None:
            node.attr["_output_shapes"].CopyFrom(AttrValue.FromString(shapes))
        if raw != restored:
            _repoint(scope, {scope.canonical(raw): restored})


def _remove_added(scope: Scope, ours: set[str]) -> None:
    """Takes out every node that was added; what used a merge uses the raw tensor again."""
    added = {n.name for n in scope.node_list if ADDED in n.attr}
    raw = {
        scope.ref(n.name, n.op): n.attr[REPLACES].s.decode() for n in scope.node_list if REPLACES in n.attr
    }
    _repoint(scope, {scope.canonical(k): v for k, v in raw.items()})
    kept = [n for n in scope.node_list if n.name not in added]
    for node in kept:
        for text in node.input:
            if producer(text) in added or (producer(text) in ours and not is_control(text)):
                raise UnsupportedModelError(
                    f"Node '{node.name}' ({node.op}) in function '{scope.name}' uses '{text}', which graphfreeze added "
                    "and has to take out. Read the variable through the model's own functions instead"
                )
    data = [n.SerializeToString() for n in kept]
    if len(data) != len(scope.node_list):
        del scope.node_list[:]
        scope.node_list.extend(NodeDef.FromString(d) for d in data)


def _repoint(scope: Scope, targets: dict[str, str]) -> None:
    for node in scope.node_list:
        for i, text in enumerate(node.input):
            if not is_control(text) and scope.canonical(text) in targets:
                node.input[i] = targets[scope.canonical(text)]
    if scope.in_function:
        for result, text in scope.proto.ret.items():
            if scope.canonical(text) in targets:
                scope.proto.ret[result] = targets[scope.canonical(text)]
