"""The main graph of a TF1 model, in which variables, initialisers, saver and optimizer stand side by side.

A *ref* variable (``VariableV2``) is its own handle: every op may take it as a value, and only the ref inputs of a few
ops change it. What initialises, saves and restores is neither read nor write and is taken out before the trace.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from graphfreeze.graph.ops import Use, use_of
from graphfreeze.graph.refs import is_control, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.savedmodel.protos import MetaGraphDef, NodeDef, VariableDef

REF_VARIABLES = frozenset({"VariableV2", "Variable"})
REF_FORWARDS = frozenset(
    {"RefIdentity", "RefSwitch", "RefEnter", "RefExit", "RefNextIteration", "DebugGradientRefIdentity"}
)
"""Ops that hand a ref on."""
REF_CHOICES = frozenset({"RefMerge", "RefSelect"})
"""Ops that hand on one of several refs."""
HANDLE_FORWARDS = frozenset({"Switch", "Enter"})
"""Ops of TF1 control flow that hand a resource handle on."""
REF_INERT = frozenset({"IsVariableInitialized"})

GIVES_REF = re.compile(
    r"Assign(Add|Sub)?|StridedSliceAssign|Scatter(Nd)?(Add|Sub|Mul|Div|Min|Max|Update)|(Sparse)?Apply(\w+)"
)
"""Writes of a ref that give it back: who takes their output reads the new value, or writes the variable again."""
# What else changes refs: how many of its inputs are ones.
_OTHER_WRITES = {"CountUpTo": 1, "NegTrain": 2, "SdcaShrinkL1": sys.maxsize}
# How many leading inputs of Apply* are refs: the variable and its slots (training_ops.cc). All others have one slot.
_REFS_OF_APPLY = {
    **dict.fromkeys(("GradientDescent", "ProximalGradientDescent"), 1),
    **dict.fromkeys(("Adam", "AdaMax", "Adadelta", "AdagradDA", "Ftrl", "FtrlV2", "RMSProp"), 3),
    "CenteredRMSProp": 4,
}
_ASSIGNS = frozenset({"Assign", "AssignVariableOp"})
# Collections that name what initialises a graph: SavedModel, Supervisor and Scaffold each have their own.
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op", "init_op", "local_init_op")
_INIT_SIGNATURE = "__saved_model_init_op"
_SAVES = frozenset({"SaveV2", "Save", "SaveSlices"})
_RESTORES = frozenset({"RestoreV2", "Restore", "RestoreSlice"})
_HANDS_ON_VALUE = frozenset({"Identity", "Cast", "Reshape"})
_VALUES = frozenset({"Identity", "ReadVariableOp"})


def ref_inputs(op: str) -> int:
    """How many of an op's first inputs are refs that it changes."""
    match = GIVES_REF.fullmatch(op)
    if match is None:
        return _OTHER_WRITES.get(op, 0)
    return _REFS_OF_APPLY.get(match[5], 2) if match[5] else 1


@dataclass(frozen=True, slots=True)
class Graph:
    """A TF1 main graph, sorted for the trace."""

    traced: Scope
    """Without ``setup``, and without reads whose value nobody takes."""
    setup: frozenset[str]
    """Nodes that initialise, save or restore, and what is computed for those alone."""
    unused: tuple[NodeDef, ...]
    """Nodes that would read a variable, and whose value no node outside ``setup`` takes."""


def sorted_graph(meta: MetaGraphDef) -> Graph:
    """Tells what initialises, saves or restores from what computes."""
    graph = Scope(meta.graph_def)
    scope = Scope(meta.graph_def)
    fetched = fetched_nodes(meta)
    setup = _setup_nodes(graph, _initialisers(meta), _run_at_start(meta, graph), fetched)
    scope.node_list = [n for n in graph.node_list if n.name not in setup]
    users = Counter(producer(text) for node in scope.node_list for text in node.input)
    unused: set[str] = set()
    for node in reversed(scope.node_list):
        if node.op in _VALUES and node.name not in fetched and not users[node.name]:
            unused.add(node.name)
            users.subtract(producer(text) for text in node.input)
    scope.node_list = [n for n in scope.node_list if n.name not in unused]
    reads = tuple(n for n in graph.node_list if n.op in _VALUES and (n.name in unused or n.name in setup))
    return Graph(scope, frozenset(setup), reads)


def _setup_nodes(graph: Scope, initialisers: set[str], started: set[str], fetched: set[str]) -> set[str]:
    """What initialises, saves or restores, with everything that only those take, back to the variables."""
    pending = [n for n in graph.node_list if n.name in started or _is_setup(graph, n, initialisers)]
    setup = {n.name for n in pending}
    users = Counter(producer(text) for node in graph.node_list for text in node.input)
    while pending:
        for text in pending.pop().input:
            name = producer(text)
            users[name] -= 1
            node = graph.nodes.get(name)
            if node is None or users[name] or name in fetched or name in setup or _has_effect(node):
                continue
            setup.add(name)
            pending.append(node)
    return setup


def _run_at_start(meta: MetaGraphDef, graph: Scope) -> set[str]:
    """Assignments that run when the model is loaded or a session is prepared: they initialise, whatever their names."""
    signature = meta.signature_def.get(_INIT_SIGNATURE)
    pending = [] if signature is None else [producer(info.name) for info in signature.outputs.values()]
    for name in _INIT_COLLECTIONS:
        if name in meta.collection_def:
            pending += [producer(n) for n in meta.collection_def[name].node_list.value]
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in seen and name in graph.nodes:
            seen.add(name)
            pending += [producer(text) for text in graph.nodes[name].input]
    return {name for name in seen if graph.nodes[name].op in _ASSIGNS}


def _has_effect(node: NodeDef) -> bool:
    return node.op in (*REF_VARIABLES, "VarHandleOp") or ref_inputs(node.op) > 0 or use_of(node.op) is Use.WRITE


def fetched_nodes(meta: MetaGraphDef) -> set[str]:
    """Nodes whose outputs signatures give out."""
    return {info.name.split(":")[0] for s in meta.signature_def.values() for info in s.outputs.values()}


def optimizer_variables(meta: MetaGraphDef) -> set[str]:
    """Variable nodes that an optimizer op takes beside the one that it updates: slots, powers of beta, rates."""
    graph = Scope(meta.graph_def)
    found: set[str] = set()
    for node in graph.node_list:
        if re.fullmatch(r"(Resource)?(Sparse)?Apply\w+", node.op):
            found.update(_variable_behind(graph, text) for text in list(node.input)[1:] if not is_control(text))
    return found - {""}


def _variable_behind(graph: Scope, text: str) -> str:
    node = graph.nodes.get(producer(text))
    while node is not None and node.op in (*_VALUES, *HANDLE_FORWARDS, *REF_FORWARDS):
        node = graph.nodes.get(producer(node.input[0]))
    return node.name if node is not None and node.op in (*REF_VARIABLES, "VarHandleOp") else ""


def is_variable_collection(name: str) -> bool:
    """Whether a collection of this name holds VariableDefs."""
    return name.endswith("variables")


def variable_defs(meta: MetaGraphDef) -> Iterator[VariableDef]:
    """Every variable that a collection describes."""
    for name, collection in meta.collection_def.items():
        if is_variable_collection(name):
            yield from (VariableDef.FromString(value) for value in collection.bytes_list.value)


def initialisers(meta: MetaGraphDef) -> dict[str, NodeDef]:
    """The node that initialises each variable node."""
    graph = Scope(meta.graph_def)
    named = _initialisers(meta)
    found: dict[str, NodeDef] = {}
    for node in graph.node_list:
        if node.op in _ASSIGNS and _is_initialiser(node, named):
            found.setdefault(producer(node.input[0]), node)
    return found


def restoring(meta: MetaGraphDef) -> Iterator[tuple[NodeDef, NodeDef]]:
    """Every assignment from a checkpoint, with the op that reads the checkpoint."""
    graph = Scope(meta.graph_def)
    named = _initialisers(meta)
    for node in graph.node_list:
        if node.op in _ASSIGNS and not _is_initialiser(node, named):
            source = _restored_from(graph, node)
            if source is not None:
                yield node, source


def _initialisers(meta: MetaGraphDef) -> set[str]:
    return {d.initializer_name.removeprefix("^").split(":")[0] for d in variable_defs(meta)} - {""}


def _is_initialiser(assign: NodeDef, named: set[str]) -> bool:
    # tf.Variable calls its initialiser NAME/Assign; a collection that says so may have been stripped.
    return assign.name in named or assign.name == f"{producer(assign.input[0])}/Assign"


def _is_setup(graph: Scope, node: NodeDef, initialisers: set[str]) -> bool:
    if node.op in _SAVES:
        return True
    if node.op not in _ASSIGNS:
        return False
    return _is_initialiser(node, initialisers) or is_restored(graph, node)


def is_restored(graph: Scope, assign: NodeDef) -> bool:
    """Whether an assigned value comes from a checkpoint."""
    return _restored_from(graph, assign) is not None


def _restored_from(graph: Scope, assign: NodeDef) -> NodeDef | None:
    node = graph.nodes.get(producer(assign.input[1]))
    while node is not None and node.op in _HANDS_ON_VALUE:
        node = graph.nodes.get(producer(node.input[0]))
    return node if node is not None and node.op in _RESTORES else None
