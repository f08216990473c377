"""The TF1 loader, and all that restores like it: signatures on poisoned weights, and what its saver writes.

Loaders without objects restore through ops of the graph, so they may miss what ``tf.saved_model.load`` finds. The
weights are poisoned on disk: both models then hold the same effective values, and NaN where nothing may read.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphfreeze.lowering.holding import Evidence
from graphfreeze.runtime.verifying.forward import Failure, Outputs, Result, words_of
from graphfreeze.runtime.verifying.inputs import ROUNDS, make_example
from graphfreeze.savedmodel import (
    DTYPE_NAMES,
    OBJECT_GRAPH_KEY,
    Bundle,
    array_difference,
    numpy_dtype,
    read_bundle,
    read_saved_model,
)
from graphfreeze.savedmodel.protos import Message, MetaGraphDef

_PREFIX = Path("variables", "variables")
_IDS = (range(3), range(1, 2), range(2, 6))
_STRING = 7


def poisoned_tensors(evidence: Evidence, values: dict[str, NDArray[Any]], *, plain: bool) -> dict[str, NDArray[Any]]:
    """By checkpoint key, what makes ``values`` (by path) the effective ones, NaN where nothing may read."""
    put: dict[str, NDArray[Any]] = {}
    for holding in evidence.holdings:
        value = np.asarray(values[holding.path], order="C")
        if plain:
            put |= dict.fromkeys(holding.source_keys, value)
            continue
        base, stored = holding.poisoned(value)
        put |= dict.fromkeys(holding.keys, np.asarray(base, order="C"))
        for part, held in zip(holding.stored, stored, strict=True):
            put |= dict.fromkeys(part.keys, held)
    return put


@dataclass(frozen=True, slots=True)
class GraphRun:
    """What the TF1 loader gives."""

    outputs: dict[str, list[Result]]
    """By signature, one per round."""
    differences: dict[str, str]
    """Key -> how what the saver of the graph wrote differs from what is stored."""


def run_graph(path: Path, evidence: Evidence, folder: Path | None = None, *, hasty: bool = False) -> GraphRun | Failure:
    """Loads with the TF1 loader, saves to ``folder`` where one is given, and runs every signature.

    ``hasty`` runs none where what was saved is wrong already.
    Returns a ``Failure`` where the loader cannot restore the model.
    """
    import tensorflow as tf

    metas = read_saved_model(path).proto.meta_graphs
    meta = next(m for m in metas if tuple(m.meta_info_def.tags) == evidence.tags)
    # As a session is by default, whatever this process has set for eager functions.
    config = tf.compat.v1.ConfigProto()
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph, config=config) as session:
        try:
            _load(session, evidence.tags, path)
        except Exception as error:
            return Failure(words_of(error))
        # First, for signatures may write.
        differences = {} if folder is None else _saved_again(session, meta, path, folder)
        if hasty and differences:
            return GraphRun({}, differences)
        outputs = {
            name: [_run(session, meta.signature_def[name], number, evidence) for number in range(ROUNDS)]
            for name in sorted(meta.signature_def)
            if not name.startswith("__")
        }
        return GraphRun(outputs, differences)


def _load(session: Any, tags: tuple[str, ...], path: Path) -> None:
    """Loads without the warning that this loader is old."""
    import tensorflow as tf

    logger = logging.getLogger("tensorflow")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        tf.compat.v1.saved_model.load(session, list(tags), str(path))
    finally:
        logger.setLevel(before)


def _saved_again(session: Any, meta: MetaGraphDef, path: Path, folder: Path) -> dict[str, str]:
    folder.mkdir(parents=True)
    saver = meta.saver_def
    try:
        session.run(saver.save_tensor_name, {saver.filename_tensor_name: os.fspath(folder / "variables")})
    except Exception as error:
        return {"saving": f"raises {words_of(error)}"}
    (index,) = folder.rglob("*.index")
    expected, actual = _tensors(read_bundle(path / _PREFIX)), _tensors(read_bundle(index.with_suffix("")))
    found = dict.fromkeys(expected.keys() - actual.keys(), "is not saved")
    found |= dict.fromkeys(actual.keys() - expected.keys(), "is saved and not stored")
    both = sorted(expected.keys() & actual.keys())
    return found | {key: words for key in both if (words := array_difference(actual[key], expected[key]))}


def _run(session: Any, signature: Message, number: int, evidence: Evidence) -> Result:
    fetched = {key: info.name for key, info in sorted(signature.outputs.items())}
    try:
        given = dict(_feed(signature, number, evidence))
        return {key: np.asarray(value) for key, value in session.run(fetched, given).items()}
    except Exception as error:
        return Failure(words_of(error))


def _feed(signature: Message, number: int, evidence: Evidence) -> Iterator[tuple[str, Any]]:
    generator = np.random.default_rng(number)
    known = np.array([*(w.encode() for w in evidence.words), b"no word of the model", b""], dtype=object)
    for _, info in sorted(signature.inputs.items()):
        shape = [d.size if d.size >= 0 else 2 for d in info.tensor_shape.dim]
        if info.name in evidence.examples:
            features = evidence.examples[info.name]
            made = [make_example(features, generator, list(known)) for _ in range(int(np.prod(shape)))]
            yield info.name, np.array(made, dtype=object).reshape(shape)
        elif info.dtype == _STRING:
            yield info.name, generator.choice(known, shape)
        elif DTYPE_NAMES[info.dtype].startswith(("float", "bfloat", "complex", "half")):
            yield info.name, generator.standard_normal(shape).astype(numpy_dtype(info.dtype))
        else:
            ids = generator.permutation(_IDS[number % len(_IDS)])
            yield info.name, np.resize(ids, shape).astype(numpy_dtype(info.dtype))


def _tensors(bundle: Bundle) -> Outputs:
    return {k: np.asarray(bundle.read_tensor(k)) for k in bundle.entries if k != OBJECT_GRAPH_KEY}
