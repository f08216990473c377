"""The trace of a TF1 main graph: ref variables are values to every op, and control flow hands handles on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from graphfreeze.graph.access import ReadAccess, direct_access, read_access
from graphfreeze.graph.ops import Access
from graphfreeze.graph.refs import producer
from graphfreeze.graph.scope import MAIN, Scope
from graphfreeze.graph.tf1 import (
    GIVES_REF,
    HANDLE_FORWARDS,
    REF_CHOICES,
    REF_FORWARDS,
    REF_INERT,
    REF_VARIABLES,
    fetched_nodes,
    ref_inputs,
    sorted_graph,
)
from graphfreeze.graph.uses import Body, Key, Read, Unknown, Write
from graphfreeze.graph.variables import Variable
from graphfreeze.savedmodel.protos import MetaGraphDef, NodeDef

_ENTERS = ("Enter", "RefEnter")
Handles = dict[str, tuple[int, int]]
"""Edge -> (variable, slot)."""


def trace_tf1_main(
    meta: MetaGraphDef,
    variables: Iterable[Variable],
    visit: Callable[[Scope, NodeDef, Handles, Body], None],
    captured: dict[str, set[str]],
) -> Body:
    """All uses in the main graph; ``visit`` handles nodes that take resource handles."""
    graph = sorted_graph(meta)
    scope = graph.traced
    handles = {h: (v.index, -1) for v in variables for h in v.handles}
    captured[MAIN] = fetched_nodes(meta)
    refs = {h for h in handles if h in scope.nodes and scope.nodes[h].op in REF_VARIABLES}
    body = Body(Key(MAIN), setup=graph.setup)
    for node in scope.in_data_order():
        texts = [scope.canonical(text) for text in scope.data_inputs(node)]
        if any(text in refs for text in texts):
            _visit_ref(scope, node, texts, refs, handles, body, captured[MAIN])
        elif node.op in HANDLE_FORWARDS and texts[0] in handles:
            # A resource: TF1 control flow hands it on by value.
            handles |= {scope.ref(node.name, node.op, i): handles[texts[0]] for i in range(2)}
        else:
            visit(scope, node, handles, body)
    body.handles = frozenset(handles)
    body.writes = _shared(scope, body.writes)
    for node in graph.unused:
        text = scope.canonical(node.input[0])
        if text in handles and (text in refs) == (node.op == "Identity"):
            body.named.append(Read(*handles[text], node.name, node.op, ReadAccess(Access.FULL)))
    return body


def _shared(scope: Scope, writes: list[Write]) -> list[Write]:
    """Marks writes beside which another of the same variable may run: nothing in a graph says in which order."""
    counts = Counter(w.variable for w in writes)
    return [replace(w, shared=counts[w.variable] > 1 or _is_in_loop(scope, w)) for w in writes]


def _is_in_loop(scope: Scope, write: Write) -> bool:
    node = scope.nodes.get(producer(scope.data_inputs(scope.nodes[write.node])[write.index]))
    while node is not None and node.op in (*HANDLE_FORWARDS, *REF_FORWARDS, "Identity"):
        if node.op in _ENTERS:
            return True
        node = scope.nodes.get(producer(node.input[0]))
    return False


def _visit_ref(
    scope: Scope,
    node: NodeDef,
    texts: list[str],
    refs: set[str],
    handles: Handles,
    body: Body,
    fetched: set[str],
) -> None:
    """One node that takes ref variables: any op reads one where it is not a ref input that the op changes."""
    if node.op in REF_FORWARDS:
        source = next(text for text in texts if text in refs)
        for i in range(2):
            refs.add(scope.ref(node.name, node.op, i))
            handles[scope.ref(node.name, node.op, i)] = handles[source]
        return
    if node.op in REF_INERT:
        return
    if node.op in REF_CHOICES:
        _choose(scope, node, texts, refs, handles, body)
        return
    changed = ref_inputs(node.op)
    for index, text in enumerate(texts):
        if text not in refs:
            continue
        variable, slot = handles[text]
        if index < changed:
            body.writes.append(Write(variable, slot, node.name, node.op, index))
            if index == 0 and GIVES_REF.fullmatch(node.op):
                # Such an op gives the ref back: who takes it reads the new value.
                refs.add(scope.ref(node.name, node.op))
                handles[scope.ref(node.name, node.op)] = (variable, slot)
            continue
        if node.op == "Identity":
            access = read_access(scope, node, Access.FULL, fetched)
        else:
            access = direct_access(scope, node, index)
        body.reads.append(Read(variable, slot, node.name, node.op, access))


def _choose(scope: Scope, node: NodeDef, texts: list[str], refs: set[str], handles: Handles, body: Body) -> None:
    """One of several refs is handed on: of one variable, or nobody knows of which."""
    given = texts[1:] if node.op == "RefSelect" else texts
    if len({handles.get(text) for text in given}) == 1:
        refs.add(scope.ref(node.name, node.op))
        handles[scope.ref(node.name, node.op)] = handles[given[0]]
        return
    for variable in dict.fromkeys(handles[text][0] for text in texts if text in refs):
        body.unknown.append(Unknown(variable, node.name, node.op, "hands on one of several variables"))
