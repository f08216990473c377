"""Invariants of a meta graph, checked after every pass: a broken edge is found by name, not by a loader's crash."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from graphfreeze.graph.ops import CALLS, CallKind
from graphfreeze.graph.refs import attr_of, is_control, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.passes.prune import called_functions
from graphfreeze.savedmodel.protos import FunctionDef, MetaGraphDef

Scopes = Sequence[Scope]
"""The main graph and every function, made once for all rules."""

Signed = tuple[str, int, int]
"""Name, nodes and arguments of a function."""


def _where(scope: Scope) -> str:
    return f"function '{scope.name}'" if scope.in_function else "the main graph"


def every_input_exists(meta: MetaGraphDef, scopes: Scopes) -> Iterator[str]:
    """Every edge comes from a node or an argument of its scope."""
    for scope in scopes:
        sources = {*scope.nodes, *scope.arguments}
        good: set[str] = set()
        for node in scope.node_list:
            for text in node.input:
                # Many nodes take the same tensor, and this rule looks at every edge after every pass.
                if text in good:
                    continue
                if producer(text) not in (scope.nodes if is_control(text) else sources):
                    yield f"{_where(scope)}, node '{node.name}', input '{text}'"
                else:
                    good.add(text)
        for name, text in scope.proto.ret.items() if scope.in_function else ():
            if producer(text) not in sources:
                yield f"{_where(scope)}, result '{name}', input '{text}'"


def names_are_unique(meta: MetaGraphDef, scopes: Scopes) -> Iterator[str]:
    """No two nodes of a scope and no two functions share a name."""
    for scope in scopes:
        if len(scope.nodes) != len(scope.node_list):
            yield _where(scope)
    names = [f.signature.name for f in meta.graph_def.library.function]
    if len(set(names)) != len(names):
        yield "the function library"


def calls_fit(meta: MetaGraphDef, scopes: Scopes) -> Iterator[str]:
    """Every call hands over as many tensors, of the same dtypes, as its function takes."""
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    for scope in scopes:
        for node in scope.node_list:
            op = CALLS.get(node.op)
            if op is None:
                continue
            passed = list(attr_of(node, op.types).list.type)
            for name in called_functions(node):
                if name not in functions:
                    if name != node.op:
                        yield f"{_where(scope)}, node '{node.name}' calls '{name}', which does not exist"
                    continue
                taken = [a.type for a in functions[name].signature.input_arg]
                if (taken[-len(passed) :] if op.tail and passed else taken[: len(passed)]) != passed or (
                    op.kind is not CallKind.DATA and len(taken) != len(passed)
                ):
                    yield f"{_where(scope)}, node '{node.name}' hands {passed} to '{name}', which takes {taken}"


def concrete_functions_fit(meta: MetaGraphDef, scopes: Scopes) -> Iterator[str]:
    """Every concrete function exists, and its bound inputs are nodes and no more than its arguments."""
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    graph = meta.object_graph_def
    for name, concrete in graph.concrete_functions.items():
        if name not in functions:
            yield f"concrete function '{name}' is not in the library"
        elif len(concrete.bound_inputs) > len(functions[name].signature.input_arg):
            yield f"concrete function '{name}' has more bound inputs than arguments"
        if any(not 0 <= n < len(graph.nodes) for n in concrete.bound_inputs):
            yield f"concrete function '{name}' is bound to a node that does not exist"
    for i, node in enumerate(graph.nodes):
        names = list(node.function.concrete_functions) if node.WhichOneof("kind") == "function" else []
        if node.WhichOneof("kind") == "bare_concrete_function":
            names = [node.bare_concrete_function.concrete_function_name]
        for name in names:
            if name not in graph.concrete_functions:
                yield f"object {i} names concrete function '{name}', which does not exist"


RULES: dict[str, Callable[[MetaGraphDef, Scopes], Iterator[str]]] = {
    "every input exists": every_input_exists,
    "names are unique": names_are_unique,
    "calls fit": calls_fit,
    "concrete functions fit": concrete_functions_fit,
}


ACROSS = frozenset({"calls fit"})
"""Rules that a function can break without being changed: what it refers to was changed or taken away."""


def broken_rules(
    meta: MetaGraphDef, whole: Collection[Signed] = (), *, across: bool = True
) -> Iterator[tuple[str, str]]:
    """(rule, place) of everything that is broken.

    Functions in ``whole`` are looked into for rules across functions only, and without ``across`` not at all.
    """
    main = Scope(meta.graph_def)
    scopes = [Scope(f) for f in meta.graph_def.library.function if across or _sign(f) not in whole]
    unseen = [scope for scope in scopes if _sign(scope.proto) not in whole]
    for rule, check in RULES.items():
        for place in check(meta, [main, *(scopes if rule in ACROSS else unseen)]):
            yield rule, place


class Invariants:
    """The rules that a meta graph kept before passes ran on it, and must keep after each."""

    def __init__(self, meta: MetaGraphDef) -> None:
        self._meta, self._source = meta, meta.SerializeToString()
        self._kept: set[Signed] = set()

    def remember(self) -> None:
        """What is not changed from here on is not looked into by the next ``first_broken``."""
        self._kept = {_sign(f) for f in self._meta.graph_def.library.function}

    def first_broken(self, *, last: bool = False) -> tuple[str, str] | None:
        """(rule, place) of something that is broken and was not at first.

        Functions that were looked into before are looked into again for rules across functions only, after the
        ``last`` pass.
        """
        broken = list(broken_rules(self._meta, self._kept, across=last))
        if not broken:
            return None
        # Seldom: models in which something was broken before are looked into as they were.
        before = set(broken_rules(type(self._meta).FromString(self._source)))
        return next((found for found in broken if found not in before), None)


def _sign(function: FunctionDef) -> Signed:
    """What tells a function that a pass left alone: passes give a changed one a new name, or add nodes to it."""
    return function.signature.name, len(function.node_def), len(function.signature.input_arg)
