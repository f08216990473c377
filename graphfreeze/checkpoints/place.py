"""Finds the model in a checkpoint's object graph: its root was given any name there, or is the checkpoint's own root.

A node is the model where child names lead from it to the model's variables, as they do in the model's own graph.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from graphfreeze.checkpoints.graph import CheckpointGraph
from graphfreeze.errors import NoMatchError, UsageError
from graphfreeze.savedmodel import children, match_children, node_at, object_paths
from graphfreeze.savedmodel.protos import Message

_MOST_LISTED = 4


def find_model(
    checkpoint: CheckpointGraph, model: Message, variables: Mapping[int, tuple[int, ...]], at: str | None
) -> dict[int, int]:
    """Node of the model's graph -> node of the checkpoint's; empty where the model is not in it.

    Args:
        checkpoint: The checkpoint.
        model: The model's object graph.
        variables: Shapes by node of the variables to find.
        at: Path of the model's root in the checkpoint, to search no further.

    Raises:
        NoMatchError: there is nothing at ``at``.
        UsageError: the model is there more than once.
    """
    graph = checkpoint.graph
    if at is not None:
        number = node_at(graph, tuple(name for name in at.split("/") if name))
        if number is None:
            known = ", ".join(f"'{c.local_name}'" for c in graph.nodes[0].children)
            raise NoMatchError(f"The checkpoint has no object at '{at}'. At its root are: {known}")
        return match_children(model, graph, number)
    names = set(children(model, 0))
    best: list[dict[int, int]] = []
    worth = 0
    for number, node in enumerate(graph.nodes):
        if not names & {c.local_name for c in node.children}:
            continue
        found = match_children(model, graph, number)
        hits = sum(_fits(checkpoint, found.get(n), shape) for n, shape in variables.items())
        if hits and hits >= worth:
            best, worth = [*(best if hits == worth else []), found], hits
    places = {tuple(sorted(f[n] for n in variables if n in f)): f for f in best}
    if len(places) > 1:
        raise _twice(graph, list(places.values()))
    return best[0] if best else {}


def _fits(checkpoint: CheckpointGraph, node: int | None, shape: tuple[int, ...]) -> bool:
    key = None if node is None else checkpoint.key(node)
    return key is not None and checkpoint.bundle.shape(key) == shape


def _twice(graph: Message, found: Sequence[Mapping[int, int]]) -> UsageError:
    paths = object_paths(graph)
    places = " and ".join(f"'{paths.get(f[0], '')}'" for f in found[:_MOST_LISTED])
    return UsageError(
        f"The checkpoint holds the model more than once: at {places}. Say which to convert with --at PATH"
    )


def not_found(prefix: object, names: Collection[str], keys: Collection[str], what: str) -> NoMatchError:
    """The error for a checkpoint that holds nothing of the model."""
    return NoMatchError(
        f"'{prefix}' is no checkpoint of {what}: it holds no value of {_listed(names)}. It holds {_listed(keys)}"
    )


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(f"'{n}'" for n in list(names)[:_MOST_LISTED])
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return shown + more or "nothing"
