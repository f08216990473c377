"""What a rewritten model stores where, beside the original: the two layouts that a conversion goes between.

Everything is read from the rewritten model; the original's objects are those that ``finalize`` would give back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from graphfreeze.errors import InputOutputError, UnsupportedModelError, UsageError
from graphfreeze.graph.trace import trace_meta_graph
from graphfreeze.graph.uses import Trace
from graphfreeze.graph.variables import Variable
from graphfreeze.passes.found import Frozen, Marks
from graphfreeze.passes.marks import read_marks
from graphfreeze.passes.presence import has_marks
from graphfreeze.passes.undo_objects import undo_objects
from graphfreeze.savedmodel import Array, Draft, object_paths
from graphfreeze.savedmodel.protos import Message, MetaGraphDef
from graphfreeze.selection import Copy, Region, Strategy


@dataclass(frozen=True, slots=True)
class Storage:
    """A variable that the rewrite added. ``region`` is None for geometry."""

    name: str
    key: str
    """In the rewritten model's own checkpoint."""
    node: int
    """In the rewritten model's object graph."""
    region: Region | None
    trainable: bool


@dataclass(frozen=True, slots=True)
class Side:
    """A variable in one of the two layouts: its node in that object graph, and what of it the optimizer gets."""

    node: int
    trained_name: str | None
    """None where nothing of it trains."""
    trained_node: int | None


@dataclass(frozen=True, slots=True)
class ModelVariable:
    """One variable of the model that trains in one of the layouts, or is frozen."""

    order: int
    """Its place in ``graphfreeze.trainable_variables``."""
    name: str
    path: str
    key: str
    dtype: str
    shape: tuple[int, ...]
    original: Side
    rewritten: Side
    storages: tuple[Storage, ...] = ()
    frozen: Region | None = None
    """Its frozen elements."""
    live: bool = False
    """Whether frozen elements are read from the variable that trains."""

    @property
    def part(self) -> Storage | None:
        """The trainable part, if the rewrite split the variable."""
        return next((s for s in self.storages if s.trainable), None)

    @property
    def held(self) -> tuple[Storage, ...]:
        """Storages that hold elements of the variable."""
        return tuple(s for s in self.storages if s.region is not None)


@dataclass(frozen=True, slots=True)
class Layout:
    """A rewritten model as both layouts."""

    draft: Draft
    rewritten: Message
    """SavedObjectGraph of the rewritten model."""
    original: Message
    """SavedObjectGraph of the original."""
    moved: Mapping[int, int]
    """Node of the rewritten graph -> node of the original's."""
    holders: tuple[int, ...]
    """Nodes of the rewritten graph that hold everything of ours."""
    variables: tuple[ModelVariable, ...]

    def touched(self) -> tuple[ModelVariable, ...]:
        """The variables that carry a freeze."""
        return tuple(v for v in self.variables if v.frozen is not None)

    def stored(self, key: str) -> Array:
        """A tensor of the rewritten model."""
        return self.draft.tensor(key)


def read_layout(model: Draft) -> Layout:
    """Both layouts of a rewritten model.

    Raises:
        UsageError: the model carries no freeze.
        UnsupportedModelError: it is a TF1 graph, or a newer version wrote the marks, or they are damaged.
        InputOutputError: the model's own checkpoint lacks a value.
    """
    meta = next((m for m in model.model.proto.meta_graphs if has_marks(m)), None)
    if meta is None:
        raise UsageError(
            f"'{model.model.directory}' carries no freeze, so checkpoints of its source fit it as they are. Give the "
            "model that graphfreeze rewrote"
        )
    trace = trace_meta_graph(model, meta)
    if not trace.is_tf2:
        raise UnsupportedModelError(
            f"'{model.model.directory}' is a TF1 graph, whose training checkpoints are not converted. Restore them in "
            "a Session of the model that they were written from, export it as a SavedModel and rewrite or finalize that"
        )
    marks = read_marks(model, meta, trace)
    original = MetaGraphDef()
    original.object_graph_def.CopyFrom(meta.object_graph_def)
    moved = undo_objects(original, None, trace, marks)
    paths = object_paths(original.object_graph_def)
    variables = tuple(_variables(trace, marks, moved, paths))
    holders = tuple(h.node for h in marks.holders)
    return Layout(model, meta.object_graph_def, original.object_graph_def, moved, holders, variables)


def _variables(
    trace: Trace, marks: Marks, moved: Mapping[int, int], paths: Mapping[int, str]
) -> Iterator[ModelVariable]:
    frozen = {f.variable: f for f in marks.frozen}
    for variable in trace.variables:
        node = variable.node_id
        if variable.index in marks.ours or node is None or node not in moved:
            continue
        held = frozen.get(variable.index)
        if held is not None and held.fact.phases:
            held = None  # some phase trains all of it, so it is stored as before
        if held is not None and held.fact.varies:
            raise UnsupportedModelError(
                f"Phases train different elements of '{held.fact.name}', in several variables, and checkpoints with "
                "slots of optimizers are not converted to such parts. Restore the checkpoint in a loaded original, "
                "save that as a SavedModel and rewrite it"
            )
        if held is not None:
            yield _frozen(trace, variable, held, moved[node], paths.get(moved[node], variable.path))
        elif trace.kind(variable) == "weight":
            trained = variable.index not in marks.enabled
            yield ModelVariable(
                order=variable.index,
                name=variable.name,
                path=variable.path,
                key=variable.key or "",
                dtype=variable.dtype,
                shape=variable.shape or (),
                original=_side(moved[node], variable.name, moved[node], trained),
                rewritten=_side(node, variable.name, node, True),
            )


def _frozen(trace: Trace, variable: Variable, held: Frozen, plain: int, path: str) -> ModelVariable:
    fact, node = held.fact, variable.node_id
    assert node is not None
    regions = {h.role: (h.region, h.trainable) for h in fact.held if h.role is not None}
    storages: list[Storage] = []
    for role, index in held.storages.items():
        region, trainable = regions.get(role, (None, False))
        storage = trace.variables[index]
        if storage.node_id is None or storage.key is None:
            raise InputOutputError(
                f"The model holds no value of '{storage.name}', a part of '{variable.name}'. Copy the whole "
                "'variables' folder, or save the model again"
            )
        storages.append(Storage(storage.name, storage.key, storage.node_id, region, trainable))
    part = next((s for s in storages if s.trainable), None)
    base_trains = fact.strategy == Strategy.MASK and (fact.trainable or fact.enabled)
    rewritten = Side(node, part.name, part.node) if part else _side(node, variable.name, node, base_trains)
    return ModelVariable(
        order=variable.index,
        name=variable.name,
        path=path,
        key=variable.key or "",
        dtype=fact.dtype,
        shape=fact.shape,
        original=_side(plain, variable.name, plain, fact.trainable),
        rewritten=rewritten,
        storages=tuple(storages),
        frozen=held.region,
        live=fact.strategy == Strategy.MASK and fact.copy == Copy.LIVE,
    )


def _side(node: int, name: str, trained: int, trains: bool) -> Side:
    return Side(node, name if trains else None, trained if trains else None)
