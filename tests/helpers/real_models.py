"""One real model through rewrite, the promises and finalize, knowing nothing of it but its protos.

A model with optimizer slots of Keras 2 loads only where tf_keras was imported first, which changes the whole process:
such models are checked by ``python -m tests.helpers.real_models NAME...``, which prints one line of JSON per case.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import graphfreeze
from graphfreeze.savedmodel import DTYPE_NAMES, numpy_dtype, read_saved_model
from graphfreeze.savedmodel.protos import MetaGraphDef
from tests.helpers.compare import assert_all_bits_equal
from tests.helpers.expected import selectors
from tests.helpers.finalized import finalized_differences
from tests.helpers.shared_models import shared_model

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "whole": ("whole", {}),
    "strict": ("whole", {"strict": True}),
    "slice": ("slice", {}),
    "mask": ("slice", {"strategy": "mask"}),
}
_PAIRS = (("whole", "mask"), ("strict", "slice"))
_DIMENSION = 2
_IDS = (range(3), range(1, 2), range(6), range(6, 12))
"""Integers may be ids or branches: each of a small table counts, and what lies beyond it fails in both models."""
_STRING = 7


def cases_of(name: str) -> tuple[str, ...]:
    """All cases with GRAPHFREEZE_FULL=1, else one of the whole variables and one of slices."""
    return tuple(CASES) if os.environ.get("GRAPHFREEZE_FULL") == "1" else _PAIRS[sum(name.encode()) % 2]


def check_model(path: Path, case: str, folder: Path, *, objects: bool = True) -> int:
    """Rewrites, compares and finalizes; returns how many variables were frozen (0: the case has none).

    ``objects`` is False for a model that TensorFlow 2 cannot load: signatures are compared through the TF1 loader.
    """
    kind, options = CASES[case]
    chosen = selectors(graphfreeze.inspect(path), kind)
    if not chosen:
        return 0
    out, plain = folder / "out", folder / "plain"
    plan = graphfreeze.rewrite(path, out, freeze=chosen, allow_empty=True, **options)
    if plan.meta_graphs[0].format == "TF1":
        from tests.helpers.sessions import check_fetches

        check_fetches(path, out, plan)
    else:
        if objects:
            from tests.helpers.promises import check_forward

            check_forward(original_of(path), out, plan)
        assert_all_bits_equal(signature_outputs(out), signature_outputs(path), "TF1 loader: ")
    graphfreeze.finalize(out, plain)
    differing = finalized_differences(plain, path)
    assert not differing, differing[:5]
    return sum(v.strategy is not None for m in plan.meta_graphs for v in m.variables)


def verified_differences(path: Path, folder: Path) -> list[Any]:
    """What is wrong with the model once the case that it has is rewritten: by ``verify``, then when it is trained.

    Few steps, in this process; the model is trained, saved, finalized and compared (see ``chain``).
    """
    from graphfreeze.passes.pair import prepare_pair
    from graphfreeze.runtime.verifying.run import Run
    from graphfreeze.runtime.verifying.task import Task
    from graphfreeze.savedmodel import open_draft
    from tests.helpers.chain import chain_differences

    view = graphfreeze.inspect(path)
    chosen = selectors(view, "slice") or selectors(view, "whole") or selectors(view, "written")
    plan = graphfreeze.rewrite(path, folder / "out", freeze=chosen, allow_empty=True)
    pair = prepare_pair(open_draft(path), open_draft(folder / "out"), folder / "pair")
    (evidence,) = pair.evidence
    run = Run(Task(pair.plain, pair.rewritten, evidence, steps=2))
    findings = run.all().findings
    assert any(f.status == "ok" for f in findings), "nothing was compared"
    found: list[Any] = [f for f in findings if f.status == "failed"]
    return found if run.unloadable else found + chain_differences(run, plan, path, folder / "out", folder)


@cache
def original_of(path: Path) -> Any:
    """The loaded original with its outputs, once for all cases."""
    from tests.helpers.promises import Original

    return Original(path, None)  # type: ignore[arg-type] (it is not trained here)


def signature_outputs(path: Path, number: int = 0, skip: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """The outputs of every signature through the TF1 loader; none where that loader cannot restore the model."""
    import tensorflow as tf

    meta = read_saved_model(path).proto.meta_graphs[number]
    results: dict[str, dict[str, Any]] = {}
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        tf.compat.v1.saved_model.load(session, list(meta.meta_info_def.tags), str(path))
        for name in sorted(meta.signature_def):
            if name.startswith("__") or name in skip:
                continue
            signature = meta.signature_def[name]
            outputs = {key: info.name for key, info in sorted(signature.outputs.items())}
            for ids in _IDS:
                feed = dict(_inputs(signature, ids))
                try:
                    results[f"{name} {ids}"] = session.run(outputs, feed)
                except (tf.errors.OpError, ValueError, TypeError) as error:
                    results[f"{name} {ids}"] = {"error": np.array(type(error).__name__)}
    return results


def _inputs(signature: MetaGraphDef.SignatureDefEntry, ids: range) -> Iterator[tuple[str, Any]]:
    generator = np.random.default_rng(0)
    for _, info in sorted(signature.inputs.items()):
        shape = [d.size if d.size >= 0 else _DIMENSION for d in info.tensor_shape.dim]
        if info.dtype == _STRING:
            yield info.name, generator.choice(np.array([b"the", b"cat", b""], dtype=object), shape)
            continue
        dtype = numpy_dtype(info.dtype)
        low = generator.standard_normal(shape) if DTYPE_NAMES[info.dtype].startswith("float") else None
        yield info.name, np.asarray(np.resize(generator.permutation(ids), shape) if low is None else low).astype(dtype)


def main(names: list[str]) -> None:
    import tf_keras  # noqa: F401 (its optimizers must be known before the first model is loaded)

    for name in names:
        for case in cases_of(name):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    result: Any = check_model(shared_model(name), case, Path(folder))
                except Exception as error:
                    result = f"{type(error).__name__}: {error}"[:2000]
            sys.stdout.write(json.dumps({"model": name, "case": case, "result": result}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
