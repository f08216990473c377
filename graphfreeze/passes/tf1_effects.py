"""What a write of a TF1 graph made run besides itself.

A session runs what a fetched node needs. Where a write no longer takes its gradient, the ops with effects that only the
gradient led to must go on running: batch statistics (UPDATE_OPS) hang on the gradient's nodes by control edges.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from graphfreeze.graph.ops import INERT, READS, Use, use_of
from graphfreeze.graph.refs import producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.tf1 import REF_VARIABLES, ref_inputs
from graphfreeze.savedmodel.protos import MetaGraphDef, NodeDef

# A node outside may not wait for one inside a loop, and must not for one in a branch: it waits for the way out.
_WALLS = frozenset({"Merge", "RefMerge", "Exit", "RefExit", "Enter", "RefEnter"})
_NO_EFFECT = re.compile(
    r"\w*(Random|Multinomial|TruncatedNormal|Placeholder|VarHandleOp|TensorArray|TensorList|Stack)\w*"
)


class Effects:
    """The effects in one main graph."""

    def __init__(self, meta: MetaGraphDef, scope: Scope) -> None:
        self._scope = scope
        self._stateful = {op.name for op in meta.meta_info_def.stripped_op_list.op if op.is_stateful}
        self._behind: dict[str, bool] = {}

    def behind(self, texts: Iterable[str]) -> list[str]:
        """Control edges to the nearest ops with effects from which these edges are computed."""
        found: dict[str, None] = {}
        for name in self._walk(texts):
            found[f"^{name}"] = None
        return list(found)

    def _walk(self, texts: Iterable[str]) -> Iterable[str]:
        pending = [producer(text) for text in texts]
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            node = self._scope.nodes.get(name)
            if name in seen or node is None:
                continue
            seen.add(name)
            if self._has_effect(node) or (node.op in _WALLS and self._any_behind(node)):
                yield name
            elif node.op not in _WALLS:
                pending += [producer(text) for text in node.input]

    def _any_behind(self, node: NodeDef) -> bool:
        if node.name not in self._behind:
            pending, seen = [node.name], set[str]()
            while pending:
                found = self._scope.nodes.get(pending.pop())
                if found is None or found.name in seen:
                    continue
                seen.add(found.name)
                if self._has_effect(found):
                    self._behind[node.name] = True
                    return True
                pending += [producer(text) for text in found.input]
            self._behind[node.name] = False
        return self._behind[node.name]

    def _has_effect(self, node: NodeDef) -> bool:
        if ref_inputs(node.op) or use_of(node.op) is Use.WRITE:
            return True
        plain = node.op in (*READS, *INERT, *REF_VARIABLES) or _NO_EFFECT.fullmatch(node.op) is not None
        return node.op in self._stateful and not plain
