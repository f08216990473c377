"""``graphfreeze.train_step``: a model that brings its own training step, for programs without Python.

TensorFlow loads the model and writes it again, with the functions added; a TF1 graph is grown in place. Either way the
freeze is a property of the graph, so whoever calls ``train`` stays within it.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from graphfreeze.errors import InputOutputError
from graphfreeze.graph.variables import is_tf2
from graphfreeze.runtime.specs import one_line
from graphfreeze.runtime.steps.inputs import parse_targets
from graphfreeze.runtime.steps.result import Steps, bytes_of
from graphfreeze.savedmodel import Draft, check_target, open_draft

_LOST = frozenset({"keras_metadata.pb", "fingerprint.pb"})
"""Files that fit one numbering of objects only, and saving counts anew."""
_METADATA = (
    "'keras_metadata.pb' is left out: it does not fit the model that was saved anew, so tf_keras load_model finds no "
    "layers there. Train the model by its signatures"
)


def train_step(
    model: str | PathLike[str],
    out: str | PathLike[str],
    *,
    loss: str,
    optimizer: str,
    function: str | None = None,
    targets: str | None = None,
    shared_state: bool = False,
    overwrite: bool = False,
) -> Steps:
    """Writes to ``out`` the model with signatures ``train``, ``evaluate``, ``save`` and ``restore``.

    ``train`` takes the inputs of ``function`` and the targets, makes one step within the freeze, and gives out ``loss``
    (of before the step) and a metric; ``evaluate`` does the same without the step. ``save`` writes all variables and
    the optimizer's state to a checkpoint at ``path``, ``restore`` reads one. Starts TensorFlow and loads the model.

    Args:
        model: Directory of a SavedModel, rewritten or not.
        out: Directory to write.
        loss: ``mse``, ``cross-entropy``, ``sparse-cross-entropy``, each perhaps with ``(output=NAME)`` and the latter
            two with ``(from_logits=true)`` where the op that makes the output does not say; or the name of an output
            (in a TF1 graph, of a tensor) that is the loss itself.
        optimizer: One of Keras, or of ``tf.compat.v1.train`` for a TF1 graph, e.g. ``"adamw(learning_rate=1e-3)"``.
        function: A signature or function to train through; by default ``serving_default``.
        targets: ``NAME:SHAPE:DTYPE``; by default ``targets``, shaped like the output.
        shared_state: One set of optimizer statistics for all phases, instead of one each.
        overwrite: Replace a SavedModel at ``out``.

    Raises:
        UsageError: an option makes no sense, or not for this model.
        NothingToTrainError: no variable is trainable, or the loss depends on none that is.
        UnsupportedModelError: TensorFlow has no gradient there, or cannot save the model again.
        InputOutputError: a file is missing or damaged, or ``out`` cannot be written.
    """
    from graphfreeze.runtime.steps.graphs import grow

    draft = open_draft(Path(model))
    check_target(draft.model, Path(out), overwrite=overwrite)
    options: dict[str, Any] = {"loss": loss, "optimizer": optimizer, "function": function}
    options |= {"targets": None if targets is None else parse_targets(targets), "shared": shared_state}
    if not any(is_tf2(meta) for meta in draft.model.proto.meta_graphs):
        made = grow(draft, **options)
        draft.write(Path(out), overwrite=overwrite)
        return Steps(str(model), str(out), *made)
    return _save_again(draft, str(model), Path(out), options, overwrite)


def _save_again(draft: Draft, name: str, out: Path, options: dict[str, Any], overwrite: bool) -> Steps:
    import tensorflow as tf

    from graphfreeze.runtime.saving import save_object
    from graphfreeze.runtime.steps.objects import add_steps

    folder = draft.model.directory
    try:
        loaded = tf.saved_model.load(str(folder))
    except (OSError, tf.errors.OpError) as error:
        raise InputOutputError(f"TensorFlow cannot load '{folder}': {one_line(error)}") from error
    built = add_steps(loaded, **options)
    with TemporaryDirectory(prefix="graphfreeze-") as scratch:
        target = Path(scratch, "model")
        save_object(loaded, target, f"'{name}' with its training steps", {**loaded.signatures, **built.signatures})
        saved = open_draft(target)
        own = {str(path) for path in saved.model.other_files()}
        others = [p for p in draft.model.other_files() if str(p) not in own and p.name not in _LOST]
        saved.extra_files |= {str(p): (folder / p).read_bytes() for p in others if p.parts[0] != "assets"}
        saved.omit.add("fingerprint.pb")
        saved.write(out, overwrite=overwrite)
    lost = (_METADATA,) if (folder / "keras_metadata.pb").is_file() else ()
    inputs = {
        key: (spec.dtype.name, None if spec.shape.rank is None else tuple(spec.shape.as_list()))
        for key, spec in built.inputs.items()
    }
    return Steps(
        name, str(out), built.trained, tuple(built.signatures), inputs, bytes_of(built.state), built.warnings + lost
    )
