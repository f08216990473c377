"""The rest of a freeze's life after rewrite and verify: train, save, finalize, diff."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import graphfreeze
from graphfreeze.runtime.verifying.models import Loaded
from graphfreeze.runtime.verifying.optimizers import make_optimizers
from graphfreeze.runtime.verifying.run import Run
from graphfreeze.runtime.verifying.training import smallest_cover, train
from graphfreeze.savedmodel import read_saved_model
from tests.helpers.resaved import assign_all, leftovers, save

LATER_SHAPES = ("shapes",)
"""A variable of unknown shape is merged at the shape of its value, so TensorFlow knows more when it saves again."""


def chain_differences(run: Run, plan: Any, source: Path, rewritten: Path, folder: Path) -> list[str]:
    """What is wrong when a verified model is trained for two steps, saved, finalized and compared.

    It must equal the source, saved by TensorFlow with the values that training has reached.
    """
    from tests.end_to_end.test_finalize import effective_values

    loaded = Loaded(rewritten, plain=False)
    before = {h.path: loaded.effective(h) for h in run.evidence.holdings}
    trained = _train(run, loaded)
    found = [
        f"frozen elements of '{h.name}' moved"
        for h in run.evidence.holdings
        if h.frozen.take(loaded.effective(h)).tobytes() != h.frozen.take(before[h.path]).tobytes()
    ]
    moved = any(loaded.effective(h).tobytes() != before[h.path].tobytes() for h in run.evidence.holdings)
    if trained and not moved and not run.evidence.others:
        found.append("nothing moved")
    values = effective_values(loaded.root, plan)
    save(loaded.root, folder / "trained", signatures=True)
    # Trained too, for TensorFlow adds outputs to loops when it computes gradients through them.
    plain = Loaded(source, plain=True)
    _train(run, plain)
    assign_all(values)(plain.root)
    expected = save(plain.root, folder / "expected", signatures=True)
    graphfreeze.finalize(folder / "trained", folder / "finalized")
    found += [f"left over: {words}" for words in leftovers(folder / "finalized")]
    if source.name not in LATER_SHAPES:
        found += _differences(source, expected, folder / "finalized")
    return found


def _differences(source: Path, expected: Path, finalized: Path) -> list[str]:
    found = graphfreeze.diff(expected, finalized)
    # What another TensorFlow said of an op, or did not say, is all that is known of a write that did not run meanwhile.
    known = ("meta graph", "stripped_op_list") if _saved_by_another_tensorflow(source) else ()
    others = [change for change in found.changes if (change.subject, change.name) != known]
    return [f"finalize gives another model than the source would be: {d}" for d in (*others, *found.values)]


def _saved_by_another_tensorflow(source: Path) -> bool:
    import tensorflow as tf

    return read_saved_model(source).proto.meta_graphs[0].meta_info_def.tensorflow_version != tf.__version__


def _train(run: Run, loaded: Loaded) -> bool:
    """Through the functions that between them reach all that trains; False where there is nothing to train."""
    guesses = run.plain.callable_guesses()
    by_label = {c.label: c for c in run.evidence.callables}
    labels = smallest_cover(run.found.reached)
    if not labels or not run.evidence.trains:
        return False
    through = [(by_label[label], guesses[label]) for label in labels]
    (make,) = make_optimizers("sgd").values()
    train(loaded, run.evidence, through, run.plain.inputs, make, steps=2, mode="eager")
    return True
