"""What lies between an object of the user's process and the SavedModel that is rewritten for it.

The way to a frozen object is through files: the object is saved with its values of now, rewritten like any SavedModel,
and loaded again. ``Exported`` remembers where each variable of the files came from, ``Origin`` stays with the frozen
object, so that ``finalize_into`` can go back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphfreeze.graph.variables import find_variables
from graphfreeze.planning.plan import Plan
from graphfreeze.savedmodel import NodePath, node_paths, open_draft

_ATTRIBUTE = "_graphfreeze_origin"


@dataclass(frozen=True, slots=True)
class Exported:
    """An object that was saved."""

    original: Any
    variables: Callable[[], Mapping[str, Any]]
    """Checkpoint key -> variable of the object, looked up anew at each call."""
    load: Callable[[Path, Plan], tuple[Any, Any]]
    """Loads the rewritten SavedModel: the frozen object, and what ``tf.saved_model.load`` returned."""
    warnings: tuple[str, ...] = ()
    """What of the object the frozen one will not have."""


@dataclass(frozen=True, slots=True)
class SourceVariable:
    """A variable of the object that was passed in, and where its storage is in the frozen one."""

    name: str
    path: str
    """Its path in the saved object, which is what ``info`` knows it by."""
    key: str
    place: NodePath
    """Child names from the root of the loaded model to the variable that holds its checkpoint key."""
    variable: Any
    """The variable of the object; None where its way there is not known."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a frozen object knows about the one it was made from."""

    exported: Exported
    loaded: Any
    sources: tuple[SourceVariable, ...]


def load_frozen(exported: Exported, folder: Path, plan: Plan) -> Any:
    """The frozen object from the rewritten SavedModel, with its origin."""
    frozen, loaded = exported.load(folder, plan)
    # Not by assignment: TensorFlow and Keras would track what hangs on an attribute, and save it with the object.
    object.__setattr__(frozen, _ATTRIBUTE, Origin(exported, loaded, _sources(exported, folder, plan)))
    return frozen


def origin_of(frozen: Any) -> Origin | None:
    """The origin of a frozen object; None for any other."""
    found = getattr(frozen, _ATTRIBUTE, None)
    return found if isinstance(found, Origin) else None


def _sources(exported: Exported, folder: Path, plan: Plan) -> tuple[SourceVariable, ...]:
    """Matched by checkpoint key, which a rewrite leaves alone; a path may run through a list that changed."""
    draft = open_draft(folder)
    (meta,) = draft.model.proto.meta_graphs
    paths = node_paths(meta.object_graph_def)
    places = {v.key: paths[v.node_id] for v in find_variables(draft, meta) if v.node_id in paths and v.key is not None}
    known = exported.variables()
    (planned,) = plan.meta_graphs
    return tuple(
        SourceVariable(planned.label(v), v.path, v.key, places[v.key], known.get(v.key))
        for v in planned.variables
        if v.key in places
    )
