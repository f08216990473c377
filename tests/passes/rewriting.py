"""Rewrites a model in memory: what the passes did, without a file written."""

from dataclasses import dataclass
from pathlib import Path

from graphfreeze.passes.execute import execute_plan
from graphfreeze.planning import Plan, plan_model
from graphfreeze.planning.request import plan_task
from graphfreeze.savedmodel import Draft, object_paths, open_draft
from graphfreeze.savedmodel.protos import FunctionDef, Message
from tests.conftest import MODELS


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The same model before and after, and the plan."""

    before: Draft
    after: Draft
    plan: Plan

    @property
    def old(self) -> Message:
        """The meta graph of the source."""
        return self.before.model.proto.meta_graphs[0]

    @property
    def new(self) -> Message:
        """The rewritten meta graph."""
        return self.after.model.proto.meta_graphs[0]

    def functions(self, stem: str) -> list[FunctionDef]:
        """Changed functions whose name begins with a text (behind ``__inference_``, where that is there)."""
        old = {f.signature.name for f in self.old.graph_def.library.function}
        found = [f for f in self.new.graph_def.library.function if f.signature.name not in old]
        return [f for f in found if f.signature.name.removeprefix("__inference_").startswith(stem)]


def rewritten(model: str | Path, *freeze: str, train: tuple[str, ...] = (), change=None, **options) -> Rewritten:
    """A fixture (or the model at a path) rewritten; ``change`` edits both drafts before."""
    path = model if isinstance(model, Path) else MODELS / model
    before, after = open_draft(path), open_draft(path)
    for draft in (before, after) if change else ():
        change(draft)
    plan = plan_model(after, plan_task("rewrite", freeze, train, **options))
    execute_plan(after, plan)
    return Rewritten(before, after, plan)


def node_of(meta: Message, path: str) -> int:
    """The object-graph node at a path."""
    return next(i for i, p in object_paths(meta.object_graph_def).items() if p == path)


def list_of(meta: Message, name: str) -> list[str]:
    """Names of the variables in a list of the root."""
    graph = meta.object_graph_def
    root = {c.local_name: c.node_id for c in graph.nodes[0].children}
    return [graph.nodes[c.node_id].variable.name for c in graph.nodes[root[name]].children]
