"""Reads a checkpoint, converts it, writes the other one."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphfreeze.checkpoints.graph import CheckpointGraph
from graphfreeze.checkpoints.layout import read_layout
from graphfreeze.checkpoints.names import convert_names
from graphfreeze.checkpoints.objects import convert_objects
from graphfreeze.checkpoints.task import Direction, Frozen, Task
from graphfreeze.savedmodel import (
    OBJECT_GRAPH_KEY,
    Draft,
    Progress,
    Put,
    check_prefix,
    open_checkpoint,
    read_trackable_graph,
    trackable_graph_tensor,
    write_checkpoint,
)


@dataclass(frozen=True, slots=True)
class Converted:
    """What ``checkpoint`` did."""

    checkpoint: str
    """The prefix that was read."""
    out: str
    """The prefix that was written."""
    direction: Direction
    model: str
    """The rewritten model."""
    variables: tuple[str, ...]
    """Names of the variables that carry a freeze."""
    slots: int
    """Slots of optimizers that were cut, put together, or reset at frozen elements."""
    dropped: tuple[str, ...]
    """Variables whose slots are left out, because nothing of them trains afterwards."""
    added: tuple[str, ...]
    """Variables that have slots of an optimizer that has not seen them yet, because they did not train before."""
    unchanged: int
    """Tensors that are the same, byte for byte."""
    differing: tuple[tuple[str, int], ...]
    """Variable -> frozen elements whose value in the checkpoint is not the rewritten model's."""
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON, schema 1."""
        return {
            "schema": 1,
            "command": "checkpoint",
            "model": self.model,
            "checkpoint": self.checkpoint,
            "out": self.out,
            "direction": self.direction,
            "variables": list(self.variables),
            "slots": {"converted": self.slots, "dropped": list(self.dropped), "added": list(self.added)},
            "unchanged": self.unchanged,
            "differing": dict(self.differing),
            "warnings": list(self.warnings),
        }


def convert(
    prefix: Path,
    out: Path,
    model: Draft,
    direction: Direction,
    *,
    frozen: Frozen = "checkpoint",
    at: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Converted:
    """Writes the converted checkpoint; see ``graphfreeze.checkpoint``."""
    bundle = open_checkpoint(prefix)
    check_prefix(bundle.prefix, out, overwrite=overwrite)
    task = Task(bundle.prefix, read_layout(model), direction == "into", frozen)
    graph = read_trackable_graph(bundle)
    put: dict[str, Put]
    if graph is None:
        named = convert_names(task, bundle)
        put, drop = named.put, named.drop
    else:
        objects = CheckpointGraph(bundle, copy.deepcopy(graph))
        convert_objects(task, objects, at)
        put, drop = objects.finish()
        if objects.graph != graph:
            put[OBJECT_GRAPH_KEY] = trackable_graph_tensor(objects.graph)
    write_checkpoint(out, bundle, put=put, drop=drop, overwrite=overwrite, progress=progress)
    return Converted(
        checkpoint=str(bundle.prefix),
        out=str(out),
        direction=direction,
        model=str(model.model.directory),
        variables=tuple(v.name for v in task.layout.touched()),
        slots=task.slots,
        dropped=tuple(dict.fromkeys(task.dropped)),
        added=tuple(dict.fromkeys(task.added)),
        unchanged=len(bundle.entries.keys() - put.keys() - drop - {OBJECT_GRAPH_KEY}),
        differing=tuple(task.differing.items()),
        warnings=tuple(dict.fromkeys(task.warnings)) + _told(task),
    )


def _told(task: Task) -> tuple[str, ...]:
    if not task.differing:
        return ()
    elements = sum(task.differing.values())
    names = ", ".join(f"'{name}'" for name in task.differing)
    taken = {"checkpoint": "the checkpoint's", "model": "the rewritten model's"}[task.frozen]
    words = (
        f"{elements:,} frozen elements (of {names}) have another value in the checkpoint than in the rewritten model; "
        f"the result holds {taken}"
    )
    return (words,)
