"""What the passes share while they change one meta graph: the protos in work, and the new variables by role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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
    """A new variable in place: its node in the object graph, its variable op and its checkpoint key."""

    new: NewVariable
    node_id: int
    """-1 in a TF1 graph, which has no objects."""
    handle: str
    key: str
    initial: str = ""
    """TF1: the tensor of its initial value."""


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

    geometry: dict[int, dict[str, str]] = field(default_factory=dict)
    """TF1: variable -> the constant of the main graph that holds each geometry array, by its key."""
    setup: set[str] = field(default_factory=set)
    """TF1: nodes that initialise, save or restore: what they take is never merged."""
    renamed: dict[str, str] = field(default_factory=dict)
    """TF1: node whose name an effective value took over -> its new name."""
    collections: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    """TF1: entries of collections that were changed or taken out, for ``finalize``."""

    before: TrackableObjectGraph | None = None
    """The checkpoint's object graph as it was before the first pass."""
    phase: str | None = None
    """The phase whose functions are made; ``merges`` are then as the phase has them."""
    by_phase: Mapping[str, dict[int, Merge]] = field(default_factory=dict)
    """Phase -> merges. ``merges`` hold what of a variable trains in any of them."""

    @property
    def bundle_graph(self) -> TrackableObjectGraph | None:
        """The checkpoint's object graph."""
        return self.draft.bundle_graph

    def in_phase(self, phase: str | None) -> Work:
        """The same work with what one phase trains and holds; with None, as it is."""
        return self if phase is None else replace(self, phase=phase, merges=self.by_phase[phase])

    @property
    def first_phase(self) -> str | None:
        """The phase by whose choice functions outside of phases train; None where there are no phases."""
        return next(iter(self.by_phase), None)

    def names(self) -> FreshNames:
        """Giver of names for the main graph."""
        return FreshNames(n.name for n in self.meta.graph_def.node)
