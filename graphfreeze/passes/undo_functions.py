"""Takes merges, captures and passed values out of functions again, from the marks on their nodes alone.

The inverse of pass ``functions``. It goes by what the graph says now, not by what was written once: after training the
model may have been saved again (all functions renamed) or wrapped in functions of the user's, whose loops and calls
then hand our variables on; those inputs go, and whatever else the user added stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.attrs import ORIGIN, SILENCED
from graphfreeze.graph.names import FreshNames, original_function_name
from graphfreeze.graph.ops import CALLS
from graphfreeze.graph.scope import Scope
from graphfreeze.passes.marks import in_function
from graphfreeze.passes.signature import is_new_argument
from graphfreeze.passes.undo_calls import Change, function_values, marked_call
from graphfreeze.passes.undo_nodes import handed_on, remove_added, restore_changed, restore_writes
from graphfreeze.passes.undo_signature import drop_arguments, restore_handle
from graphfreeze.savedmodel import DT_RESOURCE
from graphfreeze.savedmodel.protos import FunctionDef, NodeDef


@dataclass(frozen=True, slots=True)
class Origin:
    """What a function was before the rewrite."""

    name: str
    variant: int
    """Counts what the rewrite made of it. Two equal ones are of two models, which came together later."""
    stays: bool
    """Whether it stayed in the model, beside its changed variants."""
    stateful: bool


@dataclass(frozen=True, slots=True)
class _Shared:
    """A function of the plain model, and the variants that became it again."""

    name: str
    variants: set[int]


class Undo:
    """Rebuilds functions, each once per change; ``variants`` are the results by the name they replace."""

    def __init__(self, functions: Mapping[str, FunctionDef], *, saved_again: bool) -> None:
        self.functions = functions
        self._saved_again = saved_again
        self.variants: dict[str, list[FunctionDef]] = {}
        self._built: dict[tuple[str, Change], str] = {}
        self._shared: dict[tuple[str, bytes], list[_Shared]] = {}
        self._touched: dict[str, bool] = {}
        self._unsilenced: dict[str, set[int]] = {}
        """Restored function -> arguments that it writes again, which TensorFlow took for read only meanwhile."""

    @property
    def replaced(self) -> set[str]:
        """Names of the functions that were rebuilt."""
        return {name for name, _ in self._built}

    def touched(self, name: str) -> bool:
        """Whether a function, or one that it calls, holds a mark, or is called after one that did."""
        if name not in self._touched:
            self._touched[name] = False  # a cycle ends here
            function = self.functions[name]
            inner = (f.name for node in function.node_def if node.op in CALLS for _, f in function_values(node))
            marked = in_function(function) or original_function_name(name) != name
            self._touched[name] = marked or any(self.touched(n) for n in inner if n in self.functions)
        return self._touched[name]

    def build(self, name: str, change: Change) -> str:
        """The name of the function to call instead of ``name``."""
        if name not in self.functions or (change == Change() and not self.touched(name)):
            return name
        if (name, change) not in self._built:
            self._built[name, change] = self._build(name, change)
        return self._built[name, change]

    def build_uncalled(self) -> None:
        """Rebuilds changed functions that nothing refers to: TensorFlow saves some beside a traced training step.

        One that cannot be rebuilt goes, because nothing can miss it.
        """
        rest = [name for name in self.functions if self.touched(name) and name not in self.replaced]
        called = {
            f.name
            for name in rest
            for node in self.functions[name].node_def
            if node.op in CALLS
            for _, f in function_values(node)
        }
        for name in rest:
            if name not in called:
                arguments = self.functions[name].signature.input_arg
                change = Change(frozenset(i for i, a in enumerate(arguments) if is_new_argument(a.name)))
                with suppress(UnsupportedModelError):
                    self.build(name, change)
                self._built.setdefault((name, change), "")

    def undo_call(self, scope: Scope, node: NodeDef, ours: Collection[str]) -> set[str]:
        """Takes our inputs out of one call, and lets it call the restored functions; returns what those write again."""
        callee = next((self.functions.get(f.name) for _, f in function_values(node)), None)
        call = marked_call(scope, node, None if callee is None else len(callee.signature.input_arg))
        dropped = call.dropped(ours)
        for place, value in function_values(node):
            value.name = self.build(value.name, call.change(place, dropped))
        call.restore(dropped)
        positions = {p for _, value in function_values(node) for p in self._unsilenced.get(value.name, ())}
        return call.take_back({p - call.offset + call.start for p in positions})

    def _build(self, name: str, change: Change) -> str:
        function = FunctionDef()
        function.CopyFrom(self.functions[name])
        origin = _take_origin(function)
        silenced = {node.name for node in function.node_def if SILENCED in node.attr}
        restore_writes(Scope(function), saved_again=self._saved_again)
        scope = Scope(function)
        ours = handed_on(scope, [scope.arguments[i] for i in change.dropped])
        written = {scope.data_inputs(node)[0] for node in scope.node_list if node.name in silenced}
        for node in scope.node_list:
            if node.op in CALLS:
                written |= self.undo_call(scope, node, ours)
        restore_changed(scope, ours)
        remove_added(scope, ours)
        for position, note in change.handles:
            restore_handle(scope, position, note)
        drop_arguments(function, change.dropped, ours)
        if origin is not None:
            function.signature.is_stateful = origin.stateful
        placed = self._place(name, function, origin)
        arguments = [a.name for a in function.signature.input_arg]
        self._unsilenced.setdefault(placed, set()).update(i for i, a in enumerate(arguments) if a in written)
        return placed

    def _place(self, old: str, function: FunctionDef, origin: Origin | None) -> str:
        """Gives the function its original name, or a free one where another function has that.

        Variants of one function that are equal again are one function again.
        """
        shared = [] if origin is None else self._equal(function, origin)
        for same in shared:
            if origin is not None and origin.variant not in same.variants:
                same.variants.add(origin.variant)
                return same.name
        taken = {f.signature.name for fs in self.variants.values() for f in fs} | (self.functions.keys() - {old})
        name = FreshNames(taken).fresh(original_function_name(old))
        function.signature.name = name
        self.variants.setdefault(old, []).append(function)
        if origin is not None:
            shared.append(_Shared(name, {origin.variant}))
        return name

    def _equal(self, function: FunctionDef, origin: Origin) -> list[_Shared]:
        """Functions that do the same and come from the same: restored ones, and those that the rewrite left alone."""
        content = _content(function)
        if (origin.name, content) not in self._shared:
            stem = _stem(function.signature.name)
            self._shared[origin.name, content] = [
                _Shared(name, set())
                for name, other in self.functions.items()
                if origin.stays and _stem(name) == stem and not self.touched(name) and _content(other) == content
            ]
        return self._shared[origin.name, content]


def _stem(name: str) -> str:
    return re.sub(r"(_\d+)+$", "", original_function_name(name))


def _take_origin(function: FunctionDef) -> Origin | None:
    found: Origin | None = None
    for node in function.node_def:
        if ORIGIN in node.attr:
            found = Origin(**json.loads(node.attr[ORIGIN].s))
            del node.attr[ORIGIN]
    return found


def _content(function: FunctionDef) -> bytes:
    """What a function does, without names that every save counts anew and without the order of its nodes."""
    plain = FunctionDef()
    plain.CopyFrom(function)
    plain.signature.name = ""
    names = {a.name: f"argument{i}" for i, a in enumerate(plain.signature.input_arg) if a.type == DT_RESOURCE}
    for i, argument in enumerate(plain.signature.input_arg):
        if argument.name in names:
            argument.name = names[argument.name]
            plain.arg_attr[i].attr.pop("_user_specified_name", None)
    for node in plain.node_def:
        node.input[:] = [names.get(text, text) for text in node.input]
    for result, text in list(plain.ret.items()):
        plain.ret[result] = names.get(text, text)
    nodes = sorted(n.SerializeToString(deterministic=True) for n in plain.node_def)
    del plain.node_def[:]
    return bytes(plain.SerializeToString(deterministic=True)) + b"".join(nodes)
