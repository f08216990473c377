"""``graphfreeze.train``: loads a model, trains it within its freeze, and writes it as it was but for the values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from graphfreeze.errors import InputOutputError, InternalError, UnsupportedModelError
from graphfreeze.graph.variables import is_tf2
from graphfreeze.runtime.looping.batches import ArrayBatches, Batches, DatasetBatches, table_digest
from graphfreeze.runtime.looping.columns import Wanted, check_columns, fitted
from graphfreeze.runtime.looping.files import file_digest, read_data
from graphfreeze.runtime.looping.loop import Interrupted, Loop, Position, names_of
from graphfreeze.runtime.looping.request import Phases, Request, check_numbers, check_places, columns_of, plan_of
from graphfreeze.runtime.looping.result import Progress, Trained
from graphfreeze.runtime.looping.scalars import Scalars
from graphfreeze.runtime.looping.step import Step, make_optimizers, make_step, wanted_of
from graphfreeze.runtime.looping.store import Store
from graphfreeze.runtime.specs import one_line
from graphfreeze.runtime.steps.phases import find_phase
from graphfreeze.savedmodel import VARIABLE_VALUE, Draft, check_target, checkpoint_path, digest, open_draft

_PathIn = str | PathLike[str]


def train(
    model_dir: _PathIn,
    dataset: Any,
    *,
    out: _PathIn | None = None,
    phases: Phases = None,
    loss: str = "mse",
    optimizer: str = "adamw",
    function: str | None = None,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    checkpoint_dir: _PathIn | None = None,
    checkpoint_every: int | None = None,
    keep: int = 3,
    batch: int = 32,
    seed: int = 0,
    shuffle: bool = True,
    shared_state: bool = False,
    logdir: _PathIn | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Trained:
    """Trains a SavedModel within its freeze. Starts TensorFlow and runs the model.

    With a ``checkpoint_dir`` that holds checkpoints of the same run, it goes on from the last one: variables, optimizer
    state, order of data and step counters are those of a run that was never interrupted, bit for bit on one machine.

    Args:
        model_dir: Directory of a SavedModel with an object graph, rewritten or not; it is not changed.
        dataset: A ``.npz``, ``.csv`` or ``.tfrecord`` file; a mapping from input names and ``targets`` to arrays, the
            first axis that of the examples; a ``tf.data.Dataset`` of batches, as mappings of that kind or as
            (inputs, targets); or a function that takes the number of an epoch, from 0, and returns such a dataset.
        out: Directory to write the trained model to: the source's graph, signatures and files, new values.
        phases: (phase, epochs) in the order of training, or a number of epochs where the model has no phases.
        loss: ``mse``, ``cross-entropy``, ``sparse-cross-entropy``, each perhaps with ``(output=NAME)``, or the name of
            an output that is the loss itself.
        optimizer: One of Keras, e.g. ``"adamw(learning_rate=1e-3, weight_decay=0.01)"``.
        function: A signature or function to train through; by default ``serving_default``.
        columns: Input name -> the name, or names, that it has in the data.
        checkpoint_dir: Where checkpoints are written after each phase, and found again.
        checkpoint_every: Write one also each time so many steps of the run are made.
        keep: How many checkpoints stay.
        batch: Examples in a batch; a ``tf.data.Dataset`` has its own.
        seed: Of the order of examples; each epoch has an order of its own.
        shuffle: Draw the order anew for each epoch; a ``tf.data.Dataset`` has its own.
        shared_state: One set of optimizer statistics for all phases, instead of one each.
        logdir: Where scalars for TensorBoard are written.
        overwrite: Replace a SavedModel at ``out``.
        progress: Called after each step.

    Raises:
        UsageError: an option makes no sense for this model, the data do not fit it, the checkpoints belong to another
            run, or the loss is no number any more.
        NothingToTrainError: nothing is trainable, or the loss depends on nothing that is.
        UnsupportedModelError: TensorFlow has no gradient there, or the model has no object graph.
        InputOutputError: a file is missing, damaged or cannot be written.
        KeyboardInterrupt: Ctrl-C, after a checkpoint.
    """
    check_numbers(batch, checkpoint_every, keep, seed)
    check_places(out, checkpoint_dir, checkpoint_every)
    plan = plan_of(phases)
    request = Request(
        str(model_dir), plan, loss, optimizer, function, batch, seed, shuffle, shared_state, checkpoint_every, keep
    )
    draft = open_draft(Path(model_dir))
    if not all(is_tf2(meta) for meta in draft.model.proto.meta_graphs):
        raise UnsupportedModelError(
            f"'{model_dir}' is a TF1 graph, which trains in a Session by a train op. Put one into it with: graphfreeze "
            "train-step"
        )
    if out is not None:
        check_target(draft.model, Path(out), overwrite=overwrite)
    run = _Run(draft, request, dataset, columns_of(columns))
    resumed = run.train(checkpoint_dir, logdir, progress)
    if out is not None:
        run.write(Path(out), overwrite=overwrite)
    return run.result(None if out is None else str(out), resumed)


class _Run:
    """A loaded model with its steps and its data."""

    def __init__(self, draft: Draft, request: Request, dataset: Any, columns: Mapping[str, Sequence[str]]) -> None:
        self.draft, self.request = draft, request
        self.loaded = _load(draft.model.directory)
        names = dict.fromkeys(name for name, _ in request.plan)
        phases = {name: find_phase(self.loaded, name, request.function, request.loss) for name in names}
        wanted = wanted_of(phases.values())
        check_columns(columns, wanted)
        self.batches, unused = _batches(dataset, wanted, columns, request)
        self.optimizers = make_optimizers(request.optimizer, phases, request.shared)
        self.steps = {name: make_step(phase, self.optimizers[name], wanted) for name, phase in phases.items()}
        self.position = Position()
        unseeded = [text for step in self.steps.values() for text in step.randomness()[0]]
        self.deterministic = not unseeded
        self.warnings = (*unused, *_untrained(self.steps), *_random(self.steps))

    def train(self, folder: _PathIn | None, logdir: _PathIn | None, progress: Progress | None) -> int | None:
        """Trains to the end; the step from which the run went on, if it did."""
        store, held = None, _nothing()
        if folder is not None:
            identity = self.request.identity(digest(self.draft.model), self.batches.identity)
            store = Store(Path(folder), identity, self.request.keep)
            held = store.held()
        interrupted = Interrupted()
        with held, _deterministic(self.deterministic), interrupted.listening():
            resumed = None if store is None else self._resume(store)
            scalars = Scalars(logdir)

            def save(position: Position) -> str | None:
                return None if store is None else str(store.save(position.to_dict(), self._save_to))

            request = self.request
            try:
                Loop(
                    request.plan,
                    self.steps,
                    self.batches,
                    self.position,
                    save,
                    request.every,
                    scalars,
                    progress,
                    interrupted,
                ).run()
            finally:
                scalars.close()
        return resumed

    def write(self, out: Path, *, overwrite: bool) -> None:
        """The source with the values of now: its graph, signatures and other files stay as they are."""
        written = set()
        for key in self.draft.keys():  # noqa: SIM118
            variable = _at_key(self.loaded, key)
            if variable is None:
                continue
            written.add(id(variable))
            value = np.asarray(variable.numpy())
            if value.tobytes() != np.asarray(self.draft.tensor(key)).tobytes():
                self.draft.put[key] = value
        for variable in (v for step in self.steps.values() for v in step.phase.variables):
            if id(variable) not in written:
                raise InternalError(f"the trained variable '{variable.name}' has no key in the checkpoint of the model")
        self.draft.repack = True
        self.draft.omit.add("fingerprint.pb")
        self.draft.write(out, overwrite=overwrite)

    def result(self, out: str | None, resumed: int | None) -> Trained:
        """What was done."""
        state = {id(v): v.value for o in self.optimizers.values() for v in o.variables}
        trained = {name: names_of(step.phase.variables) for name, step in self.steps.items()}
        position = self.position
        size = sum(int(v.dtype.size * v.shape.num_elements()) for v in state.values())
        return Trained(
            self.request.model, out, tuple(position.history), position.step, resumed, trained, size, self.warnings
        )

    def _checkpoint(self) -> Any:
        import tensorflow as tf

        # By place, because a phase may have any name, or none.
        unique = list({id(o): o for o in self.optimizers.values()}.values())
        return tf.train.Checkpoint(model=self.loaded, optimizers=unique)

    def _save_to(self, prefix: Path) -> None:
        import tensorflow as tf

        try:
            self._checkpoint().write(str(prefix))
        except (OSError, tf.errors.OpError) as error:
            raise InputOutputError(f"Cannot write the checkpoint '{prefix}': {one_line(error)}") from error

    def _resume(self, store: Store) -> int | None:
        import tensorflow as tf

        latest = store.latest()
        if latest is None:
            return None
        prefix, state = latest
        try:
            status = self._checkpoint().read(str(prefix))
            status.assert_consumed()
        except (OSError, tf.errors.OpError, AssertionError, ValueError) as error:
            raise InputOutputError(
                f"The checkpoint '{prefix.parent}' is damaged: {one_line(error)}. Remove that folder to go on from the "
                "one before"
            ) from error
        self.position = Position.from_dict(state)
        return self.position.step


def _load(folder: Path) -> Any:
    import tensorflow as tf

    try:
        return tf.saved_model.load(str(folder))
    except (OSError, tf.errors.OpError, RuntimeError) as error:
        raise InputOutputError(f"TensorFlow cannot load '{folder}': {one_line(error)}") from error


def _at_key(loaded: Any, key: str) -> Any:
    """The variable that a checkpoint key of the source leads to; None where it is none."""
    import tensorflow as tf

    suffix = f"/.ATTRIBUTES/{VARIABLE_VALUE}"
    found = loaded
    for part in key.removesuffix(suffix).split("/") if key.endswith(suffix) else ():
        children = tf.train.TrackableView.children(found)
        found = next((child for name, child in children.items() if checkpoint_path((name,)) == part), None)
        if found is None:
            return None
    return found if isinstance(found, tf.Variable) else None


def _batches(
    dataset: Any, wanted: Sequence[Wanted], columns: Mapping[str, Sequence[str]], request: Request
) -> tuple[Batches, list[str]]:
    """The data, and warnings of what in it is not used."""
    if callable(dataset) or hasattr(dataset, "cardinality"):
        return DatasetBatches(dataset, wanted), []
    if isinstance(dataset, Mapping):
        where = "the mapping of arrays"
        table, unused = fitted(dataset, wanted, columns, where)
        identity = table_digest(table)
    else:
        where = f"'{dataset}'"
        table, unused = read_data(Path(dataset), wanted, columns)
        identity = f"{file_digest(Path(dataset))} {sorted((n, list(k)) for n, k in columns.items())}"
    sizes = {one.shape[0] for one in wanted if one.shape} - {None}
    # A function that was traced for one size of a batch takes no other, not even a smaller last one.
    size, whole = (min(s for s in sizes if s is not None), True) if sizes else (request.batch, False)
    batches = ArrayBatches(table, size, request.shuffle, request.seed, whole, identity)
    warnings = [f"{where} also holds {_list(unused)}, which the function does not take"] if unused else []
    if whole and batches.rows % size:
        warnings.append(
            f"the function takes batches of {size} examples, so each epoch leaves out {batches.rows % size} of the "
            f"{batches.rows:,}"
        )
    return batches, warnings


def _untrained(steps: Mapping[str | None, Step]) -> list[str]:
    return [
        f"'{name}' is not trained: function '{step.phase.function.name}' does not use it for the loss"
        for step in steps.values()
        for name in step.untrained
    ]


def _random(steps: Mapping[str | None, Step]) -> list[str]:
    found: dict[str, None] = {}
    for step in steps.values():
        unseeded, seeded = step.randomness()
        found |= dict.fromkeys([*unseeded, *seeded])
    if not found:
        return []
    text = (
        f"random numbers of {_list(list(found))} come from a counter inside the op, which no checkpoint holds: a run "
        "that is interrupted goes on with other ones, so its result is not the same bit for bit"
    )
    return [text]


def _list(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(f"'{n}'" for n in names[:most])
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _nothing() -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def _deterministic(wanted: bool) -> Iterator[None]:
    """Sums in one order for as long as the run takes; ops that draw without a seed refuse that."""
    import tensorflow as tf
    from tensorflow.python.framework import config

    if not wanted or config.is_op_determinism_enabled():
        yield
        return
    tf.config.experimental.enable_op_determinism()
    try:
        yield
    finally:
        # The only way back; TensorFlow has no public one.
        config.disable_op_determinism()
