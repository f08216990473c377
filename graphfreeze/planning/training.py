"""Whether a model can be trained as it is, through which of its functions, and if not, why.

Told from the graph alone. What ``tf.saved_model.load`` shows of a model is what can be trained with an optimizer: its
functions and signatures, and variables that are flagged as trainable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from graphfreeze.graph.paths import GradientPaths, Reach
from graphfreeze.graph.tf1 import REF_VARIABLES, sorted_graph
from graphfreeze.graph.trace import Traces
from graphfreeze.graph.uses import Trace
from graphfreeze.planning.plan import MetaGraphPlan, Plan
from graphfreeze.planning.records import FunctionTraining, Training
from graphfreeze.savedmodel import Draft, object_paths
from graphfreeze.savedmodel.protos import MetaGraphDef

_OURS = "graphfreeze/"
_SIGNATURES = "signatures/"


def with_training(draft: Draft, plan: Plan, traces: Traces) -> Plan:
    """The plan with the answer for each of its meta graphs."""
    metas = {tuple(m.meta_info_def.tags): m for m in draft.model.proto.meta_graphs}
    return replace(
        plan,
        meta_graphs=tuple(replace(m, training=training_of(metas[m.tags], traces[m.tags])) for m in plan.meta_graphs),
    )


def asked(plan: Plan, without_gradient: Callable[[Iterable[str]], tuple[str, ...]]) -> Plan:
    """The plan with the ops that have no gradient, according to ``without_gradient``."""

    def complete(meta: MetaGraphPlan) -> MetaGraphPlan:
        if meta.training is None:
            return meta
        ops = {op for f in meta.training.functions for op in f.ops}
        return replace(meta, training=replace(meta.training, without_gradient=without_gradient(ops)))

    return replace(plan, meta_graphs=tuple(complete(m) for m in plan.meta_graphs))


def training_of(meta: MetaGraphDef, trace: Trace) -> Training:
    """The answer for one meta graph."""
    weights = [v for v in trace.variables if trace.trains(v)]
    if not trace.variables:
        return Training(False, "it has no variables: whatever it learned is constants of the graph", 0)
    if not weights:
        return Training(False, "no variable is marked as trainable; rewrite with --train NAME --enable turns one on", 0)
    functions, reached = _functions(meta, trace) if trace.is_tf2 else _fetched(meta, trace)
    if not trace.is_tf2 and any(n.op in REF_VARIABLES for n in meta.graph_def.node):
        session = "it has ref variables and trains only in a Session (tf.compat.v1.saved_model.load)"
        return Training(bool(reached), session, len(reached), functions)
    if not functions:
        return Training(False, "it has no functions and no signatures: nothing computes with its variables", 0)
    if not reached:
        return Training(False, _no_path(functions), 0, functions)
    only = trace.is_tf2 and all(f.name.startswith("signature ") for f in functions)
    note = "only through its signatures: loaded.signatures[NAME](...)" if only else ""
    return Training(True, note, len(reached), functions)


def _no_path(functions: Sequence[FunctionTraining]) -> str:
    reasons = {f.why for f in functions if f.read}
    stopped = next((r for r in sorted(reasons) if "StopGradient" in r), "")
    return stopped or "no function leads from a trainable variable to a float output"


def _functions(meta: MetaGraphDef, trace: Trace) -> tuple[tuple[FunctionTraining, ...], frozenset[int]]:
    paths = GradientPaths(meta, trace)
    graph, names = meta.object_graph_def, object_paths(meta.object_graph_def)
    found: dict[str, list[str]] = {}
    for number, node in enumerate(graph.nodes):
        path = names.get(number, "")
        if not path or path.startswith(_OURS):
            continue
        if node.WhichOneof("kind") == "function":
            found.setdefault(path, []).extend(node.function.concrete_functions)
        elif path.startswith(_SIGNATURES) and node.WhichOneof("kind") == "bare_concrete_function":
            label = f"signature {path.removeprefix(_SIGNATURES)}"
            found.setdefault(label, []).append(node.bare_concrete_function.concrete_function_name)
    reached: frozenset[int] = frozenset()
    results = []
    for name, concrete in found.items():
        reaches = [paths.of_function(trace.roots[c]) for c in concrete if c in trace.roots]
        results.append(_described(name, reaches))
        reached = reached.union(*(r.variables for r in reaches))
    return tuple(results), reached


def _fetched(meta: MetaGraphDef, trace: Trace) -> tuple[tuple[FunctionTraining, ...], frozenset[int]]:
    """A TF1 graph has no functions; its signatures say what is fetched from it."""
    paths, scope = GradientPaths(meta, trace), sorted_graph(meta).traced
    reached: frozenset[int] = frozenset()
    results = []
    for name, signature in sorted(meta.signature_def.items()):
        if name.startswith("__"):
            continue
        reach = paths.of_edges(scope, trace.main, [info.name for info in signature.outputs.values()])
        results.append(_described(f"signature {name}", [reach]))
        reached |= reach.variables
    return tuple(results), reached


def _described(name: str, reaches: Sequence[Reach]) -> FunctionTraining:
    variables = frozenset[int]().union(*(r.variables for r in reaches))
    read = frozenset[int]().union(*(r.read for r in reaches))
    ops = sorted({op for r in reaches for op in r.ops})
    why = ""
    if not read:
        why = "it reads no trainable variable"
    elif not variables:
        stopped = next((place for r in reaches for place in r.blocked), None)
        why = (
            f"StopGradient '{stopped[1]}' is in the way"
            if stopped is not None
            else "no float output depends on a trainable variable"
        )
    return FunctionTraining(name, len(variables), len(read), why, tuple(ops))
