"""Saving a loaded model again, and what must not be left after finalize."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from graphfreeze.savedmodel import read_saved_model
from tests.helpers.variables import Array, variables_by_path


def save(loaded: Any, path: Path, *, signatures: bool) -> Path:
    """``tf.saved_model.save``, with or without the signatures that the model came with."""
    tf.saved_model.save(loaded, str(path), signatures=(dict(loaded.signatures) or None) if signatures else None)
    return path


def save_again(path: Path, out: Path, *, signatures: bool, change: Callable[[Any], None] | None = None) -> Path:
    """Loads, changes values, saves."""
    loaded = tf.saved_model.load(str(path))
    if change is not None:
        change(loaded)
    return save(loaded, out, signatures=signatures)


def train_a_little(loaded: Any, seed: int = 0) -> None:
    """Moves everything that a rewritten model says trains."""
    generator = np.random.default_rng(seed)
    for variable in loaded.graphfreeze.info.concrete_functions[0].trainable_variables:
        noise = generator.normal(size=variable.numpy().shape)
        variable.assign(variable.numpy() + noise.astype(variable.dtype.as_numpy_dtype))


def assign_all(values: dict[str, Array]) -> Callable[[Any], None]:
    """Puts values in by path; a path that only the rewritten model's lists gave is left out."""

    def change(loaded: Any) -> None:
        by_path = variables_by_path(loaded)
        for path, value in values.items():
            if path in by_path:
                by_path[path].assign(value)

    return change


def leftovers(path: Path) -> list[str]:
    """Everything in a SavedModel that still names graphfreeze."""
    return list(_leftovers(path))


def _leftovers(path: Path) -> Iterator[str]:
    model = read_saved_model(path)
    data = (path / "saved_model.pb").read_bytes()
    start = data.find(b"graphfreeze")
    if start >= 0:
        yield f"saved_model.pb: {data[max(0, start - 60) : start + 60]!r}"
    for key in model.bundle.entries if model.bundle is not None else ():
        raw = model.bundle.read_bytes(key)
        if "graphfreeze" in key or (key.startswith("_") and b"graphfreeze" in raw):
            yield f"checkpoint: {key}"
    yield from (f"file: {file}" for file in model.other_files() if "graphfreeze" in str(file))
