"""The plan of a whole model: one meta graph after the other, those that the user named or all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from graphfreeze.errors import UnsupportedModelError, UsageError
from graphfreeze.graph.trace import Traces, trace_model
from graphfreeze.graph.uses import Trace
from graphfreeze.planning.decide import Options, Source, plan_meta_graph
from graphfreeze.planning.phases import plan_phases
from graphfreeze.planning.plan import MetaGraphPlan, Plan, Storage
from graphfreeze.planning.together import all_held, refuse_different, shared_out, with_writes
from graphfreeze.planning.views import held_by_view
from graphfreeze.savedmodel import Draft, digest
from graphfreeze.selection import Phase, Region, Rule, Spec, Verb

KERAS_METADATA = "keras_metadata.pb"
"""A file that tf_keras writes into a SavedModel, and rebuilds layers from."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a plan is made for."""

    command: str
    rules: tuple[Rule, ...] = ()
    options: Options = field(default_factory=Options)
    tags: frozenset[str] | None = None
    """Tags of the meta graph to plan; None plans all."""
    held: Mapping[str, Region] = field(default_factory=dict)
    """Regions that are frozen already, by object path; the rules extend them."""
    phases: tuple[Phase, ...] = ()
    """Stages of training, each with rules that follow ``rules``."""


def plan_model(draft: Draft, task: Task, traces: Traces | None = None) -> Plan:
    """Plans every meta graph of the model that ``task`` names; traces them where ``traces`` is not given.

    Raises:
        UsageError: no meta graph has these tags, or one that is left out reads a variable that changes its storage.
    """
    planned: list[MetaGraphPlan] = []
    sources: list[Source] = []
    found: list[str] = []
    traces = traces or trace_model(draft)
    left_out: list[tuple[tuple[str, ...], Trace]] = []
    for meta in draft.model.proto.meta_graphs:
        tags = tuple(meta.meta_info_def.tags)
        trace = traces[tags]
        if task.tags is not None and task.tags != set(tags):
            left_out.append((tags, trace))
            continue
        signatures = tuple(sorted(s for s in meta.signature_def if not s.startswith("__")))
        held = held_by_view(trace, task.held)
        sources.append(Source(tags, signatures, trace, draft.keys(), draft.tensor, held))
    made = _phased(draft, sources, task) if task.phases else _plain(sources, task)
    for result, notes in made:
        planned.append(result)
        found += notes
    _refuse_lost(task, planned)
    if not planned:
        known = ", ".join(str(sorted(tags)) for tags, _ in left_out)
        raise UsageError(
            f"No meta graph has exactly the tags {sorted(task.tags or ())}. The model's meta graphs have: {known}"
        )
    _refuse_left_out(planned, left_out)
    refuse_different(planned)
    if any(m.touched() for m in planned):
        found += _keras_warning(draft)
    options = task.options
    spec = Spec(task.rules, options.strategy, options.copy, options.batch_norm, task.phases).to_dict()
    return Plan(
        command=task.command,
        model=str(draft.model.directory),
        digest=digest(draft.model),
        meta_graphs=tuple(planned),
        spec=spec,
        warnings=tuple(dict.fromkeys(found)),
    )


def _plain(sources: Sequence[Source], task: Task) -> Iterator[tuple[MetaGraphPlan, tuple[str, ...]]]:
    for source, rules in shared_out(with_writes(sources), task.rules):
        yield plan_meta_graph(source, rules, task.options)


def _phased(draft: Draft, sources: Sequence[Source], task: Task) -> Iterator[tuple[MetaGraphPlan, tuple[str, ...]]]:
    """Every meta graph with the rules that each phase has for it.

    Where the common rules all say ``train``, they freeze the rest in every phase, also in one that freezes more.
    """
    metas = {tuple(m.meta_info_def.tags): m for m in draft.model.proto.meta_graphs}
    known = with_writes(sources)
    if task.rules and all(rule.verb is Verb.TRAIN for rule in task.rules):
        known = [all_held(source) for source in known]
    by_phase = [list(shared_out(known, (*task.rules, *phase.rules))) for phase in task.phases]
    for ruled in zip(*by_phase, strict=True):
        meta = metas[ruled[0][0].tags]
        yield plan_phases(meta, list(zip(task.phases, ruled, strict=True)), task.options)


def _keras_warning(draft: Draft) -> list[str]:
    if KERAS_METADATA not in draft.extra_files and not (draft.model.directory / KERAS_METADATA).is_file():
        return []
    warning = (
        f"'{KERAS_METADATA}' is set aside: load_model of tf_keras would rebuild the layers from it and ignore the "
        "freeze; without it load_model fails. Load the result with tf.saved_model.load or TFSMLayer"
    )
    return [warning]


def _refuse_lost(task: Task, planned: Sequence[MetaGraphPlan]) -> None:
    lost = set(task.held) - {v.path for m in planned for v in m.variables}
    if lost:
        raise UnsupportedModelError(
            f"The model is frozen at '{sorted(lost)[0]}', and no variable is found at that path any more. Finalize the "
            "model first, then rewrite it"
        )


def _refuse_left_out(planned: Sequence[MetaGraphPlan], left_out: Sequence[tuple[tuple[str, ...], Trace]]) -> None:
    """A meta graph that still reads the old storage would compute with dead values."""
    moved = {
        v.key: m.label(v) for m in planned for v in m.touched() if any(a.storage is not Storage.BASE for a in v.atoms)
    }
    for tags, trace in left_out:
        for variable in trace.variables:
            if variable.key in moved and any(True for _ in trace.reads(variable.index)):
                raise UsageError(
                    f"Meta graph {sorted(tags)} reads '{moved[variable.key]}' too, and --tags leaves it out: it would "
                    "go on with the old storage. Leave --tags out, or name a variable that it does not read"
                )
