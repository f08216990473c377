"""What the passes share while they change one meta graph: the protos in work, and the new variables by role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graphfreeze.graph.names import FreshNames
from graphfreeze.graph.uses import Trace
from graphfreeze.lowering.merge import Merge, NewVariable
from graphfreeze.planning.plan import MetaGraphPlan
from graphfreeze.savedmodel import Draft
from graphfreeze.savedmodel.protos import MetaGraphDef, TrackableObjectGraph

StorageKey = tuple[int, str]
"""(variable, role)."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A new variable in place: its node in the object graph, its VarHandleOp and its checkpoint key."""

    new: NewVariable
    node_id: int
    handle: str
    key: str


@dataclass(slots=True)
class Work:
    """One meta graph in work. Passes change ``meta`` and ``draft``; the rest says what to do."""

    draft: Draft
    meta: MetaGraphDef
    trace: Trace
    plan: MetaGraphPlan
    merges: dict[int, Merge]
    source: str
    """Digest of the model that is rewritten."""
    spec: Mapping[str, object] = field(default_factory=dict)
    stored: dict[StorageKey, Stored] = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)
    """Functions of the source that changed ones stand for."""
    lists: list[dict[str, object]] = field(default_factory=list)
    """Entries of root lists that were changed, for ``finalize``."""

    before: TrackableObjectGraph | None = None
    """The checkpoint's object graph as it was before the first pass."""

    @property
    def bundle_graph(self) -> TrackableObjectGraph | None:
        """The checkpoint's object graph."""
        return self.draft.bundle_graph

    def names(self) -> FreshNames:
        """Giver of names for the main graph."""
        return FreshNames(n.name for n in self.meta.graph_def.node)
