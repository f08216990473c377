"""The architecture, read from top to bottom: what each command does, one call per step.

All but ``verify`` and ``freeze`` work on protobufs and bytes: no op of a model runs, TensorFlow is not started. All
return plain values. ``verify`` runs the model in a process of its own, ``freeze`` takes an object of this one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from graphfreeze.errors import NoMatchError, UsageError, VerificationError
from graphfreeze.graph.trace import trace_model
from graphfreeze.passes.execute import execute_plan
from graphfreeze.passes.planned import plan_call, taken_off
from graphfreeze.passes.presence import is_rewritten
from graphfreeze.planning import Plan, plan_model
from graphfreeze.planning.request import PlanOptions, Selectors, given_plan, plan_task
from graphfreeze.savedmodel import Weights, check_target, open_draft

# What only some commands need is imported by them: a rewrite starts at once.
if TYPE_CHECKING:
    from graphfreeze.checkpoints import Converted, Direction, Frozen
    from graphfreeze.comparison import Difference
    from graphfreeze.passes.finalize import Finalized
    from graphfreeze.passes.phase_view import Phases
    from graphfreeze.runtime.verifying.results import Verified

PathIn = str | PathLike[str]
Progress = Callable[[int, int], None]
_INSPECT = ": graphfreeze inspect MODEL"
"""How the message of a selector without a match ends: what to do with a model on disk."""
_SHOWN = 10
"""Names that it shows instead for a model in memory."""


def inspect(model: PathIn, *, tags: Iterable[str] | None = None, deep: bool = False) -> Plan:
    """What a SavedModel holds: variables, all their uses, what of them is frozen, and whether it can be trained.

    ``deep`` also asks TensorFlow, which it starts, for ops without a gradient; no op of the model runs.

    Raises:
        InputOutputError: no SavedModel is there, or it is damaged.
        UsageError: no meta graph has these tags.
        UnsupportedModelError: a newer version rewrote the model, or its marks are damaged.
    """
    from graphfreeze.passes.frozen_view import show_freeze
    from graphfreeze.planning.training import asked, with_training
    from graphfreeze.runtime.gradients import ops_without_gradient

    draft = open_draft(Path(model))
    traces = trace_model(draft)
    found = show_freeze(draft, plan_model(draft, plan_task("inspect", tags=tags), traces), traces)
    found = with_training(draft, found, traces)
    return asked(found, ops_without_gradient) if deep else found


def plan(
    model: PathIn, *, freeze: Selectors = (), train: Selectors = (), add: bool = False, **options: Unpack[PlanOptions]
) -> Plan:
    """What ``rewrite`` would do with the same arguments, with reasons; nothing is written.

    Args:
        model: Directory of a SavedModel.
        freeze: Selectors of what to hold, e.g. ``"emb[:50000]"``, ``"encoder/**"``.
        train: Selectors of what to train all the same; the last rule that covers an element decides.
        add: Extend the freeze that the model already carries instead of replacing it.
        **options: See ``PlanOptions``.

    Raises:
        UsageError: the selectors, the spec or the options make no sense for this model.
        NoMatchError: a selector covers nothing.
        UnsupportedModelError: a selected variable is used in a way that cannot be followed or held.
        NothingToTrainError: nothing is left to train.
        InputOutputError: a file is missing or damaged.
    """
    draft = open_draft(Path(model))
    off = taken_off(draft)
    return plan_call("plan", draft, trace_model(draft), off, freeze, train, add, options)


def rewrite(
    model: PathIn,
    out: PathIn,
    *,
    freeze: Selectors = (),
    train: Selectors = (),
    add: bool = False,
    plan: Plan | PathIn | None = None,
    weights: Weights = "copy",
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Unpack[PlanOptions],
) -> Plan:
    """Writes to ``out`` the model with the frozen part held, ready for continued training anywhere.

    Args:
        model: Directory of a SavedModel; it is never changed.
        out: Directory to write.
        freeze: As for ``plan``.
        train: As for ``plan``.
        add: As for ``plan``.
        plan: A plan made before (a value or a JSON file), to execute exactly; takes the place of all rules and options.
        weights: ``copy``, or ``link`` for hard links to the source's weights, which both become read-only.
        overwrite: Replace a SavedModel at ``out``.
        progress: Called with bytes written and bytes to write.
        **options: See ``PlanOptions``.

    Returns:
        The plan that was executed.

    Raises:
        UsageError, NoMatchError, UnsupportedModelError, NothingToTrainError, InputOutputError: as for ``plan``.
    """
    draft = open_draft(Path(model))
    check_target(draft.model, Path(out), overwrite=overwrite)
    off = taken_off(draft)
    with draft.copying(Path(out), weights):
        traces = trace_model(draft)
        if plan is None:
            made = plan_call("rewrite", draft, traces, off, freeze, train, add, options)
        else:
            beside = bool(freeze or train or add or any(options.values()))
            made = replace(given_plan(plan, beside), command="rewrite")
        execute_plan(draft, made, traces)
        made = replace(made, warnings=made.warnings + draft.keep_linked(weights))
        draft.write(Path(out), weights=weights, overwrite=overwrite, progress=progress)
    return made


def finalize(
    model: PathIn,
    out: PathIn,
    *,
    unfreeze: Selectors = (),
    overwrite: bool = False,
    weights: Weights = "copy",
    progress: Progress | None = None,
) -> Finalized:
    """Writes to ``out`` the plain model: no node, capture or variable of ours is left, values are the effective ones.

    Args:
        model: A rewritten model, trained and saved again or not.
        out: Directory to write.
        unfreeze: Globs of variables whose freeze is lifted while the others keep theirs; empty lifts all.
        overwrite: Replace a SavedModel at ``out``.
        weights: As for ``rewrite``; with ``link`` the bytes of what was taken out stay in the linked files.
        progress: Called with bytes written and bytes to write.

    Raises:
        UsageError: the model carries no freeze.
        NoMatchError: ``unfreeze`` matches no frozen variable.
        UnsupportedModelError: a newer version wrote the marks, or they are damaged.
        InputOutputError: as for ``rewrite``.
    """
    from graphfreeze.passes.finalize import Finalized, take_off
    from graphfreeze.passes.refreeze import matching, plan_again
    from graphfreeze.passes.undo_steps import carries_steps

    draft = open_draft(Path(model))
    check_target(draft.model, Path(out), overwrite=overwrite)
    if not is_rewritten(draft) and not carries_steps(draft):
        raise UsageError(
            f"'{model}' carries no freeze: graphfreeze finds none of its marks there. Give a model that graphfreeze "
            "rewrote, or one that was trained and saved from it"
        )
    off = take_off(draft)
    globs = [unfreeze] if isinstance(unfreeze, str) else list(unfreeze)
    lifted = matching(globs, off.frozen) if globs else list(off.frozen)
    kept = [v for v in off.frozen if v not in lifted]
    warnings = off.warnings
    if kept and off.phases:
        raise UsageError(
            f"'{model}' has phases, and a freeze with phases is lifted as a whole: leave --unfreeze out, or rewrite "
            "the model again with another spec"
        )
    if kept:
        traces = trace_model(draft)
        again = plan_again(draft, traces, kept, off.enabled, inference=off.inference)
        execute_plan(draft, again, traces)
        warnings += again.warnings
    warnings += draft.keep_linked(weights)
    draft.write(Path(out), weights=weights, overwrite=overwrite, progress=progress)
    return Finalized(tuple(v.name for v in lifted), warnings, str(out))


def phases(model: PathIn) -> Phases:
    """The phases of a rewritten model: what each trains, what an optimizer needs for it, and its functions.

    Raises:
        UsageError: the model has no phases.
        UnsupportedModelError: a newer version rewrote the model, or its marks are damaged.
        InputOutputError: no SavedModel is there, or it is damaged.
    """
    from graphfreeze.passes.phase_view import read_phases

    return read_phases(open_draft(Path(model)))


def verify(
    source: PathIn,
    rewritten: PathIn,
    *,
    steps: int = 20,
    optimizer: str = "adamw",
    seed: int = 0,
    inputs: PathIn | Mapping[str, Any] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Verified:
    """Runs a rewritten model beside its source, in a fresh process, and says whether it keeps what it promises.

    Args:
        source: Directory of the model that was rewritten; where it carries a freeze itself, that is taken off first.
        rewritten: Directory of the result, trained and saved again or not. A trained one is compared with what
            ``finalize`` makes of it, and its frozen elements with the source's.
        steps: How many steps each training run has.
        optimizer: Name of a Keras optimizer, in any case, or ``all`` for a set of them.
        seed: Of inputs and of the numbers that trainable elements are tried with.
        inputs: Samples by input name or ``NAME@signature``, or an ``.npz`` file of such; the rest is made up.
        progress: Called with the name of each check that begins.

    Returns:
        All that was found, where nothing failed.

    Raises:
        VerificationError: something failed; ``report`` holds all that was found.
        UsageError: ``rewritten`` carries no freeze, ``source`` is another model, or an option makes no sense.
        UnsupportedModelError: the marks of the freeze are damaged.
        InputOutputError: a file is missing or damaged.
    """
    from tempfile import TemporaryDirectory

    from graphfreeze.passes.pair import prepare_pair
    from graphfreeze.runtime.verifying.inputs import read_samples
    from graphfreeze.runtime.verifying.process import run_afresh
    from graphfreeze.runtime.verifying.results import Verified
    from graphfreeze.runtime.verifying.task import Task

    if steps < 1:
        raise UsageError(f"A training run needs at least 1 step, found {steps}")
    samples = read_samples(inputs)
    before, after = open_draft(Path(source)), open_draft(Path(rewritten))
    with TemporaryDirectory(prefix="graphfreeze-") as folder:
        pair = prepare_pair(before, after, Path(folder))
        tasks = [
            Task(pair.plain, pair.rewritten, e, steps, optimizer, seed, samples, pair.old_keras) for e in pair.evidence
        ]
        rows = [run_afresh(task, progress) for task in tasks]
    report = Verified(str(source), str(rewritten), pair.trained, pair.warnings).extended(rows)
    if report.failures:
        raise VerificationError(report.first_offender, report)
    return report


def freeze(
    model: Any,
    *,
    freeze: Selectors = (),
    train: Selectors = (),
    add: bool = False,
    inputs: Any = None,
    **options: Unpack[PlanOptions],
) -> Any:
    """An object of the same calling convention, with new variables at the values of now, frozen and ready to train.

    The object is saved to a temporary folder, rewritten as any SavedModel is, and loaded; it is not changed itself.
    What the new object will not have (untraced functions, plain Python methods) is named in a ``UserWarning``, as are
    the warnings of the plan.

    Args:
        model: What ``tf.saved_model.load`` returned, a ``tf.Module``, or a built Keras 3 model on TensorFlow. A Keras
            model gives a Keras model that is not compiled; its variables are selected by their Keras paths.
        freeze: As for ``plan``.
        train: As for ``plan``.
        add: As for ``plan``; extends the freeze that the object already has.
        inputs: Example inputs or ``tf.TensorSpec``s to trace for: ``__call__`` of a ``tf.Module``, or a subclassed
            Keras model whose inputs are not one plain float tensor each. A tuple lists several arguments; the first
            axis of an example is the batch.
        **options: See ``PlanOptions``; an object has one meta graph, so ``tags`` are refused.

    Raises:
        UsageError: the object is none of these or was never traced, or as for ``plan``.
        UnsupportedModelError: as for ``rewrite``, or a Keras input is optional.
        NoMatchError, NothingToTrainError, InputOutputError: as for ``rewrite``.
    """
    import shutil
    import weakref
    from tempfile import mkdtemp

    from graphfreeze.runtime.exported import load_frozen
    from graphfreeze.runtime.objects import export

    if options.get("tags") is not None:
        raise UsageError("tags= select a meta graph of a SavedModel on disk; an object in memory has only one")
    scratch = Path(mkdtemp(prefix="graphfreeze-"))
    assets = scratch / "frozen" / "assets"
    kept = False
    try:
        exported = export(model, scratch / "source", inputs)
        made = _rewrite_export(scratch, freeze=freeze, train=train, add=add, **options)
        shutil.rmtree(scratch / "source")
        frozen = load_frozen(exported, scratch / "frozen", made)
        # Assets are read again when the object is saved, so they live as long as it does.
        kept = assets.is_dir() and any(assets.iterdir())
        if kept:
            weakref.finalize(frozen, shutil.rmtree, scratch, ignore_errors=True)
    finally:
        if not kept:
            shutil.rmtree(scratch, ignore_errors=True)
    for text in (*exported.warnings, *made.warnings):
        warnings.warn(text, UserWarning, stacklevel=2)
    return frozen


def _rewrite_export(scratch: Path, **arguments: Any) -> Plan:
    """Rewrites a saved object, which has no path that could be inspected: an error names its variables instead."""
    source = scratch / "source"
    try:
        return rewrite(source, scratch / "frozen", **arguments)
    except NoMatchError as error:
        if not str(error).endswith(_INSPECT):
            raise
        names = [m.label(v) for m in inspect(source).meta_graphs for v in m.variables]
        shown = ", ".join(f"'{n}'" for n in names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        raise NoMatchError(f"{str(error).removesuffix(_INSPECT)}: {shown}") from error


def diff(a: PathIn, b: PathIn) -> Difference:
    """What differs between two SavedModels; nothing is run, and functions are matched up to renaming.

    Two saves of one model are equal: the numbers that TensorFlow gives to functions, captures and nodes of its saver,
    and the order of nodes, do not count. All else does, down to the bits of every tensor and file.

    Args:
        a: Directory of a SavedModel.
        b: Directory of the other.

    Returns:
        Functions, nodes, objects, variables, flags, signatures, tensors and files that were added, removed or changed;
        the largest change of every variable; and where one or both carry a freeze, how many frozen elements changed.

    Raises:
        InputOutputError: a model is not there, or is damaged.
        UnsupportedModelError: a newer version wrote the marks of a freeze, or they are damaged.
    """
    from graphfreeze.comparison import compare

    return compare(open_draft(Path(a)), open_draft(Path(b)))


def checkpoint(
    prefix: PathIn,
    out: PathIn,
    *,
    into: PathIn | None = None,
    from_: PathIn | None = None,
    frozen: Frozen = "checkpoint",
    at: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Converted:
    """Writes to ``out`` a training checkpoint of the original, converted for the rewritten model, or the other way.

    Parts and optimizer slots are cut, or put together; all other tensors stay byte for byte. Checkpoints of
    ``tf.train.Checkpoint`` with optimizers of Keras 3, tf_keras and TF1, and name-based ones of TF1. Coming back, a
    slot has at frozen elements what an optimizer gives a variable that it has not seen: zero, 0.1 for accumulators of
    Adagrad and Ftrl, the value itself for averages of it.

    Args:
        prefix: The checkpoint, ``DIR/NAME`` for ``DIR/NAME.index``.
        out: Prefix to write.
        into: The rewritten model, for a checkpoint of its original.
        from_: The rewritten model, for a checkpoint of itself that is to fit the original.
        frozen: With ``into``, where the values of frozen elements come from: from the ``checkpoint``, so that the
            result is the state that training had reached, or from the rewritten ``model``.
        at: Path of the model's root in the checkpoint, for one that holds several models of that structure.
        overwrite: Replace a checkpoint at ``out``.
        progress: Called with bytes written and bytes to write.

    Raises:
        UsageError: not exactly one of ``into`` and ``from_`` is given, the model carries no freeze, or the checkpoint
            does not fit it.
        NoMatchError: the checkpoint holds no variable of the model.
        UnsupportedModelError: an optimizer keeps statistics over a whole tensor that was split.
        InputOutputError: the checkpoint is missing or damaged, or ``out`` cannot be written.
    """
    from graphfreeze.checkpoints import convert as convert_checkpoint

    if (into is None) == (from_ is None):
        raise UsageError("A checkpoint is converted either into the layout of a rewritten model or from it: give one")
    model = open_draft(Path(str(from_ if into is None else into)))
    direction: Direction = "from" if into is None else "into"
    return convert_checkpoint(
        Path(prefix), Path(out), model, direction, frozen=frozen, at=at, overwrite=overwrite, progress=progress
    )
