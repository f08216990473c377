"""A SavedModel in memory with pending changes, so that several steps can work on it before anything is written.

Tensors are read through the draft: one that a step has put is seen by the next, and untouched ones stay on disk. The
checkpoint's object graph is parsed once and written back where it was changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from graphfreeze.savedmodel.ahead import ShardCopies
from graphfreeze.savedmodel.bundle import Array
from graphfreeze.savedmodel.bundle_write import Progress, Put, StoredTensor, StreamedTensor, Weights
from graphfreeze.savedmodel.container import SavedModel, read_saved_model
from graphfreeze.savedmodel.container_write import write_saved_model
from graphfreeze.savedmodel.object_graph import OBJECT_GRAPH_KEY, read_trackable_graph, trackable_graph_tensor
from graphfreeze.savedmodel.protos import Message


@dataclass(slots=True)
class Draft:
    """``model`` as it was read (its proto is changed in place), and what is to be written beside it."""

    model: SavedModel
    bundle_graph: Message | None
    """The checkpoint's TrackableObjectGraph, changed in place; None where the checkpoint has none."""
    put: dict[str, Put] = field(default_factory=dict)
    drop: set[str] = field(default_factory=set)
    omit: set[str] = field(default_factory=set)
    extra_files: dict[str, bytes] = field(default_factory=dict)
    repack: bool = False
    """Whether the weights are written anew as one shard without gaps."""
    _copies: ShardCopies | None = None

    def keys(self) -> frozenset[str]:
        """Checkpoint keys that hold a tensor."""
        stored = set() if self.model.bundle is None else set(self.model.bundle.entries)
        return frozenset((stored - self.drop) | set(self.put))

    def tensor(self, key: str) -> Array:
        """A tensor's value, pending changes included."""
        value = self.put.get(key)
        if isinstance(value, np.ndarray):
            return value
        if isinstance(value, StreamedTensor):
            raise KeyError(key)
        bundle = self.model.bundle
        if bundle is None or (value is None and key in self.drop):
            raise KeyError(key)
        return bundle.read_tensor(value.key if isinstance(value, StoredTensor) else key)

    def shape(self, key: str) -> tuple[int, ...]:
        """A tensor's shape."""
        value = self.put.get(key)
        if value is not None and not isinstance(value, StoredTensor):
            return tuple(value.shape)
        if self.model.bundle is None:
            raise KeyError(key)
        return self.model.bundle.shape(value.key if value is not None else key)

    @contextmanager
    def copying(self, target: Path, weights: Weights) -> Iterator[None]:
        """Copies the weights in the background while the block plans, changes and at last writes the model."""
        if weights == "copy" and not self.repack and self.model.bundle is not None:
            self._copies = ShardCopies(self.model.bundle, target)
        try:
            yield
        finally:
            if self._copies is not None:
                self._copies.close()
                self._copies = None

    def keep_linked(self, weights: Weights) -> tuple[str, ...]:
        """With linked weights nothing can be taken out of the shards: keeps them as they are, and says so."""
        if weights != "link" or not self.repack:
            return ()
        self.repack = False
        note = "the linked weights still hold the bytes of tensors that were taken out; no reader sees them"
        return (f"{note}. Use --weights copy to write the weights without them",)

    def write(
        self, target: Path, *, weights: Weights = "copy", overwrite: bool = False, progress: Progress | None = None
    ) -> None:
        """Writes everything to a new directory; see ``write_saved_model``."""
        put = dict(self.put)
        # Messages are compared, not bytes: serialising alone may change those, and an untouched graph stays.
        if self.bundle_graph is not None and self.bundle_graph != read_trackable_graph(self.model.bundle):
            put[OBJECT_GRAPH_KEY] = trackable_graph_tensor(self.bundle_graph)
        write_saved_model(
            self.model,
            target,
            put=put,
            drop=self.drop,
            weights=weights,
            repack=self.repack,
            overwrite=overwrite,
            extra_files=dict(self.extra_files),
            omit=self.omit,
            progress=progress,
            copies=self._copies,
        )


def open_draft(path: Path) -> Draft:
    """Reads the SavedModel at ``path``; see ``read_saved_model`` for what is raised."""
    model = read_saved_model(path)
    return Draft(model, read_trackable_graph(model.bundle))
