"""Turns a trace and a spec into the plan of one meta graph: what is held, how, why, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from graphfreeze.errors import NothingToTrainError, UnsupportedModelError
from graphfreeze.graph.uses import SOURCE_NOT_FOUND, Trace
from graphfreeze.graph.variables import Variable, element_bytes, is_float
from graphfreeze.planning.batch_norm import decide_norms
from graphfreeze.planning.guards import guard_against
from graphfreeze.planning.partitions import mod_warnings
from graphfreeze.planning.plan import MetaGraphPlan, ReadRecord, Storage, VariablePlan, WriteRecord
from graphfreeze.planning.records import BatchNormRecord
from graphfreeze.planning.strategy import Request, decide, hold_by_guards
from graphfreeze.planning.views import Views
from graphfreeze.selection import BatchNorm, Copy, Region, Resolution, Rule, Strategy, Verb, resolve, whole_region

ReadValues = Callable[[str], NDArray[np.generic]]
ADAM_SLOTS = 2


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for, besides the rules."""

    strategy: Strategy = Strategy.AUTO
    copy: Copy = Copy.SNAPSHOT
    strict: bool = False
    enable: bool = False
    state: bool = False
    allow_empty: bool = False
    batch_norm: BatchNorm = BatchNorm.FREEZE_STATS
    extend: bool = True
    """Whether statistics of a batch norm may be frozen that no rule freezes."""
    lite: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """One meta graph as the plan sees it. ``stored`` are the keys of the checkpoint."""

    tags: tuple[str, ...]
    signatures: tuple[str, ...]
    trace: Trace
    stored: frozenset[str]
    read_values: ReadValues
    held: Mapping[Hashable, Region]
    """Regions that are frozen already (a second rewrite with ``--add``), by view."""
    written_elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Keys that another meta graph over the same weights writes, and where: the storage has to suit it too."""
    views: Views = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "views", Views(self.trace))


def plan_meta_graph(source: Source, rules: Sequence[Rule], options: Options) -> tuple[MetaGraphPlan, tuple[str, ...]]:
    """The plan of one meta graph, and warnings.

    Raises:
        NoMatchError, UsageError: a rule does not fit the model.
        UnsupportedModelError: a selected variable is used in a way that cannot be followed or held.
        NothingToTrainError: nothing is left to train.
    """
    trace = source.trace
    labels = variable_labels(trace)
    described = [describe_variable(trace, v) for v in trace.variables]
    if not rules and not source.held:
        return meta_graph_of(source, described), ()
    resolution = resolve_rules(source, rules, options)
    warnings = [*resolution.notes]
    touched = {v.index: (region, enabled) for v, region, enabled in source.views.touched(resolution)}
    norms, reasons = norms_of(source, labels, resolution, rules, touched, options)
    for index, (frozen, enabled) in sorted(touched.items()):
        if frozen.is_empty and not enabled:
            continue
        variable = trace.variables[index]
        refuse_unknown(trace, variable, labels[index])
        held = hold(source, variable, labels[index], described[index], frozen, enabled, options)
        described[index] = replace(held, reason="; ".join(filter(None, (held.reason, reasons.get(index)))))
    planned = replace(meta_graph_of(source, described), batch_norms=norms)
    warnings += warnings_of(planned)
    warnings += mod_warnings(trace, {index: region for index, (region, _) in touched.items()})
    if not options.allow_empty and trainable_elements(described) == 0:
        raise NothingToTrainError(
            "The freeze leaves nothing to train: every trainable element of the model is frozen. Freeze less, or pass "
            "--allow-empty"
        )
    return planned, tuple(warnings)


def norms_of(
    source: Source,
    labels: Sequence[str],
    resolution: Resolution,
    rules: Sequence[Rule],
    touched: dict[int, tuple[Region, bool]],
    options: Options,
) -> tuple[tuple[BatchNormRecord, ...], dict[int, str]]:
    """The batch norms; statistics that are frozen with them join ``touched``, and get a reason each."""
    trained = {
        outcome.variable.id
        for outcome in resolution.variables
        if any(rules[number].verb is Verb.TRAIN for number in outcome.rules)
    }
    frozen = {index: region for index, (region, _) in touched.items()}
    decided = list(
        decide_norms(
            source.trace,
            labels,
            frozen,
            {i for i in trained if isinstance(i, int)},
            options.batch_norm,
            extend=options.extend,
        )
    )
    reasons: dict[int, str] = {}
    for norm in decided:
        for index in norm.frozen:
            touched[index] = (whole_region(source.trace.variables[index].shape or ()), False)
            reasons[index] = f"batch norm: {norm.record.reason}"
    return tuple(norm.record for norm in decided), reasons


def resolve_rules(source: Source, rules: Sequence[Rule], options: Options) -> Resolution:
    """Which elements rules hold; see ``resolve`` for what is raised."""
    return resolve(
        rules,
        source.views.all,
        enable=options.enable,
        state=options.state,
        read_values=source.read_values,
        held=source.held,
    )


def meta_graph_of(source: Source, variables: Iterable[VariablePlan]) -> MetaGraphPlan:
    """The plan of a meta graph with these variables."""
    return MetaGraphPlan(source.tags, source.signatures, tuple(variables), "TF2" if source.trace.is_tf2 else "TF1")


def variable_labels(trace: Trace) -> list[str]:
    """What each variable is called: its name, or its path where names repeat."""
    uses = Counter(v.name for v in trace.variables)
    return [v.path if uses[v.name] > 1 else v.name for v in trace.variables]


def describe_variable(trace: Trace, variable: Variable) -> VariablePlan:
    """A variable that is left alone."""
    kind = trace.kind(variable)
    trains = kind == "weight"
    size = variable.elements * element_bytes(variable.dtype)
    slots = ADAM_SLOTS * size if trains else 0
    return VariablePlan(
        name=variable.name,
        path=variable.path,
        key=variable.key,
        dtype=variable.dtype,
        shape=variable.shape,
        kind=kind,
        trainable=variable.trainable,
        elements=variable.elements,
        bytes=size,
        part_of=None if variable.part is None else variable.part.whole,
        reads=tuple(ReadRecord(f, r.node, r.op, r.access.shown) for f, r in trace.reads(variable.index)),
        writes=tuple(WriteRecord(f, w.node, w.op) for f, w in trace.writes(variable.index)),
        optimizer_bytes=(slots, slots),
    )


def refuse_unknown(trace: Trace, variable: Variable, label: str) -> None:
    """Refuses a variable with a use that no table explains."""
    for function, use in trace.unknown(variable.index):
        where = f"function '{function}'" if function else "the main graph"
        raise UnsupportedModelError(
            f"Cannot freeze '{label}': node '{use.node}' in {where} hands it to op '{use.op}', which {use.why}, so its "
            "effect on the variable is unknown. Leave the variable out, or save the model without that op"
        )


def hold(
    source: Source,
    variable: Variable,
    label: str,
    plain: VariablePlan,
    frozen: Region,
    enabled: bool,
    options: Options,
) -> VariablePlan:
    """The variable with these elements frozen."""
    if frozen.is_empty:
        slots = ADAM_SLOTS * plain.bytes
        return replace(plain, enabled=True, reason="turned on by --enable", optimizer_bytes=(0, slots))
    if not is_float(variable.dtype):
        writes = with_guards(source.trace, variable.index, plain, whole_region(variable.shape or ()))
        return replace(
            plain, frozen=plain.elements, strategy=Strategy.STOP, reason="state, held as it is", writes=writes
        )
    if plain.kind == "statistic" and not enabled:
        decision = hold_by_guards(frozen)
    else:
        written = written_by(source, variable, plain)
        decision = decide(Request(label, frozen, options.copy, options.strict, written), options.strategy)
    if any(a.storage is not Storage.BASE for a in decision.atoms) and variable.key not in source.stored:
        raise UnsupportedModelError(
            f"Cannot freeze part of '{label}': the checkpoint holds no value for it (key {variable.key!r}). Strategy "
            f"'{decision.strategy}' copies values; freeze the whole variable without --strict, or save the model with "
            "its variables"
        )
    trains = plain.kind == "weight" or enabled
    part = prod(next((a.region.storage_shape for a in decision.atoms if a.storage is Storage.PART), (0,)))
    after = {Strategy.STOP: 0, Strategy.SPLIT: part, Strategy.MASK: plain.elements}[decision.strategy]
    return replace(
        plain,
        frozen=frozen.count if variable.shape is not None else 0,
        strategy=decision.strategy,
        copy=decision.copy,
        strict=decision.strict,
        enabled=enabled,
        reason=decision.reason,
        atoms=decision.atoms,
        writes=with_guards(source.trace, variable.index, plain, frozen, lite=options.lite),
        optimizer_bytes=(
            plain.optimizer_bytes[0],
            ADAM_SLOTS * after * element_bytes(variable.dtype) if trains else 0,
        ),
    )


def written_by(source: Source, variable: Variable, plain: VariablePlan) -> str:
    """What in the graph, or in another meta graph, writes the variable, in words; empty where nothing does."""
    return _written(source.trace, variable, plain) or source.written_elsewhere.get(variable.key or "", "")


def _written(trace: Trace, variable: Variable, plain: VariablePlan) -> str:
    if plain.writes:
        write = plain.writes[0]
        where = f"function '{write.function}'" if write.function else "the main graph"
        return f"{where} writes the variable (node '{write.node}', {write.op})"
    return "a function of the model restores the variable from a checkpoint" if trace.restored(variable.index) else ""


def with_guards(
    trace: Trace, index: int, plain: VariablePlan, region: Region, *, lite: bool = False
) -> tuple[WriteRecord, ...]:
    """The writes, each with its guard and the place where its gradient is masked."""
    found = zip(plain.writes, trace.writes(index), trace.gradients(index), strict=True)
    return tuple(
        replace(record, guard=guard_against(region, write, lite=lite), gradient=gradient)
        for record, (_, write), gradient in found
    )


def warnings_of(planned: MetaGraphPlan) -> list[str]:
    """What the user should know of a plan."""
    found: list[str] = []
    # No optimizer is given a statistic.
    masked = [planned.label(v) for v in planned.variables if v.strategy is Strategy.MASK and v.kind != "statistic"]
    live = [planned.label(v) for v in planned.variables if v.copy is Copy.LIVE and v.kind != "statistic"]
    if masked:
        found.append(
            f"{_names(masked)}: strategy 'mask' is exact for element-wise optimizers; those with statistics over a "
            "whole tensor (Adafactor, Lamb, Lars, Muon) still see frozen elements. Use a region that 'split' can hold "
            "for them"
        )
    if live:
        found.append(
            f"{_names(live)}: copy 'live' holds against writes in the graph, not against weight decay or averaging by "
            "a Python optimizer. Use copy 'snapshot' for those"
        )
    found += _inference(planned)
    counted = [planned.label(v) for v in planned.variables if any(w.gradient == SOURCE_NOT_FOUND for w in v.writes)]
    if counted:
        found.append(
            f"{_names(counted)}: the model computes a norm of its gradients, and the source of this one "
            "was not found: frozen elements do not move, but count in that norm, so the rest may train a little "
            "slower. plan -v shows the write"
        )
    return found


def _inference(planned: MetaGraphPlan) -> list[str]:
    changed = [norm for norm in planned.batch_norms if norm.choice == BatchNorm.INFERENCE]
    if not changed:
        return []
    functions = [f for f in dict.fromkeys(p.function for n in changed for p in n.places) if f]
    where = f" in {_names(functions)}" if functions else ""
    warning = (
        f"{_names([n.label for n in changed])}: with --batch-norm inference, training mode{where} uses the stored "
        "statistics instead of the batch's, so what it gives out differs from the source's, on purpose"
    )
    return [warning]


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{n}'" for n in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def trainable_elements(variables: Iterable[VariablePlan]) -> int:
    """Elements that go on training."""
    return sum(v.elements - v.frozen for v in variables if v.kind == "weight" or v.enabled)
