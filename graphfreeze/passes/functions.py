"""Pass ``functions``: merges, guards around writes, masks on gradients and stored statistics, in every function.

A changed function gets a fresh name with a hash of its content and its callers follow, up to the main graph and the
object graph, so that the original and the rewritten model load into one process and one graph. A function that is
called with different variables is specialised per binding.

Covered scopes: every function body that the trace reached (branches, loop conditions and bodies, data functions,
gradient functions), the calls of the main graph, and the concrete functions of the object graph.
"""

from __future__ import annotations

import json

from graphfreeze.graph.attrs import ADDED, ORIGIN, bytes_attr
from graphfreeze.graph.names import FreshNames, changed_function_name
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.uses import Body, Key
from graphfreeze.passes.batch_norm import use_stored_statistics
from graphfreeze.passes.calls import rewire_call
from graphfreeze.passes.gradients import mask_gradients
from graphfreeze.passes.guards import guard_writes
from graphfreeze.passes.needs import Layout, Mode, NeedsAnalysis, layout_of
from graphfreeze.passes.phases import PhaseFunctions, refuse_captured
from graphfreeze.passes.reads import rewire_reads, take_value
from graphfreeze.passes.signature import Arguments, change_signature
from graphfreeze.passes.state import Work
from graphfreeze.savedmodel import DTYPE_NUMBERS
from graphfreeze.savedmodel.protos import FunctionDef

Variants = dict[str, list[FunctionDef]]
"""Changed functions by the one that they came from."""


def rewrite_functions(work: Work) -> None:
    """Rewrites all functions and everything that refers to them by name; with phases, as the first one has it."""
    variants: Variants = {}
    phases: list[PhaseFunctions] = []
    if work.by_phase and work.trace.is_tf2:
        refuse_captured(work)
        phases = [PhaseFunctions(Rewriter(work.in_phase(name), variants)) for name in work.by_phase]
    for phase in phases:
        phase.make()
    Rewriter(work.in_phase(work.first_phase), variants).run()
    for phase in phases:
        phase.place()
    _place(work, variants)


class Rewriter:
    """Builds changed functions, each once per (binding, mode, layout)."""

    def __init__(self, work: Work, variants: Variants) -> None:
        self.work = work
        self.needs = NeedsAnalysis(work.trace, work.merges)
        self.library: dict[str, FunctionDef] = {f.signature.name: f for f in work.meta.graph_def.library.function}
        self.built: dict[tuple[Key, Mode, Layout], str] = {}
        self.variants = variants
        self.tensors: dict[str, dict[str, str]] = {}
        """Changed function -> raw tensors whose consumers now take another."""

    def run(self) -> None:
        """The whole pass."""
        for name, key in self.work.trace.roots.items():
            layout = layout_of(self.needs.of(key, Mode.PLAIN)) if self.needs.touched(key) else Layout()
            new = self.build(key, Mode.PLAIN, layout)
            if new != name:
                self._bind(name, new, layout)
        self._main()

    def build(self, key: Key, mode: Mode, layout: Layout) -> str:
        """The name of the function to call instead of ``key.function``."""
        if layout.is_empty and not self.needs.touched(key):
            return key.function
        if (key, mode, layout) not in self.built:
            self.built[key, mode, layout] = self._build(key, mode, layout)
        return self.built[key, mode, layout]

    def _build(self, key: Key, mode: Mode, layout: Layout) -> str:
        function = FunctionDef()
        function.CopyFrom(self.library[key.function])
        scope = Scope(function)
        names = FreshNames([*scope.nodes, *scope.arguments])
        body = self.work.trace.bodies[key]
        bound = dict(key.binding)
        types = {slot: self.work.merges[bound[slot]].typed for slot in (*layout.inplace, *layout.values)}
        new = {k: (DTYPE_NUMBERS[s.new.dtype], s.new.shape) for k, s in self.work.stored.items()}
        arguments = change_signature(scope, names, layout, types, new)
        moved = rewire_reads(self, scope, names, body, mode, arguments)
        use_stored_statistics(self.work, scope, names, body)
        guard_writes(self.work, scope, names, body, arguments.storages)
        mask_gradients(self.work, scope, names, body, arguments.storages)
        for call in body.calls:
            rewire_call(self, scope, names, call, mode, arguments)
        for slot in layout.inplace:
            take_value(scope, scope.arguments[slot], *types[slot])
        name = changed_function_name(key.function, function.SerializeToString(deterministic=True))
        function.signature.name = name
        if all(v.signature.name != name for v in self.variants.setdefault(key.function, [])):
            self._mark_origin(key, function)
            self.variants[key.function].append(function)
        self.work.replaced.add(key.function)
        self.tensors[name] = moved
        return name

    def _mark_origin(self, key: Key, function: FunctionDef) -> None:
        """Notes what the function was: names change at every save, and effects are worked out anew."""
        stays = any(k.function == key.function and not self.needs.touched(k) for k in self.work.trace.bodies)
        origin = {
            "name": key.function,
            "variant": len(self.variants[key.function]),
            "stays": stays,
            "stateful": function.signature.is_stateful,
        }
        if not function.node_def:  # a branch that does nothing
            function.node_def.add(name="graphfreeze", op="NoOp").attr[ADDED].CopyFrom(bytes_attr(""))
        function.node_def[0].attr[ORIGIN].CopyFrom(bytes_attr(json.dumps(origin)))

    def _bind(self, old: str, new: str, layout: Layout) -> None:
        """Renames a concrete function and appends the storages to its bound inputs."""
        graph = self.work.meta.object_graph_def
        concrete = graph.concrete_functions[new]
        concrete.CopyFrom(graph.concrete_functions[old])
        del graph.concrete_functions[old]
        concrete.bound_inputs.extend(self.work.stored[s].node_id for s in layout.storages)
        for node in graph.nodes:
            match node.WhichOneof("kind"):
                case "function":
                    names = [new if n == old else n for n in node.function.concrete_functions]
                    node.function.concrete_functions[:] = names
                case "bare_concrete_function" if node.bare_concrete_function.concrete_function_name == old:
                    node.bare_concrete_function.concrete_function_name = new
                case "captured_tensor" if node.captured_tensor.concrete_function == old:
                    tensor = node.captured_tensor.name
                    node.captured_tensor.concrete_function = new
                    node.captured_tensor.name = self.tensors[new].get(tensor, tensor)
        for gradient in self.work.meta.graph_def.library.registered_gradients:
            if gradient.gradient_func == old:
                gradient.gradient_func = new

    def _main(self) -> None:
        """The calls of the main graph take the storages' VarHandleOps."""
        scope = Scope(self.work.meta.graph_def)
        names = self.work.names()
        body: Body = self.work.trace.main
        arguments = Arguments({}, {key: stored.handle for key, stored in self.work.stored.items()})
        for call in body.calls:
            rewire_call(self, scope, names, call, Mode.PLAIN, arguments)


def _place(work: Work, variants: Variants) -> None:
    """Puts every changed function behind the one that it came from; the old ones go where nothing needs them."""
    functions = work.meta.graph_def.library.function
    for index in reversed(range(len(functions))):
        for variant in reversed(variants.get(functions[index].signature.name, ())):
            functions.insert(index + 1, variant)
