"""Plans phases: the regions that they hold cut each variable into atoms, and each phase trains some of those.

Only what differs between phases is stored in another way. A variable that all phases hold alike is held as without
phases, and one that each phase trains whole or not at all stays as it is: a phase that holds it has it behind
StopGradient. Else every atom that some phase trains becomes a variable of its own, so that an optimizer that is given
the atoms of a phase can move nothing else.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from graphfreeze.errors import NothingToTrainError, UnsupportedModelError, UsageError
from graphfreeze.graph.callables import public_functions, public_signatures
from graphfreeze.graph.names import legal_name
from graphfreeze.graph.variables import Variable, element_bytes
from graphfreeze.planning.decide import (
    ADAM_SLOTS,
    Options,
    Source,
    describe_variable,
    hold,
    meta_graph_of,
    norms_of,
    refuse_unknown,
    resolve_rules,
    trainable_elements,
    variable_labels,
    warnings_of,
    with_guards,
    written_by,
)
from graphfreeze.planning.plan import Atom, MetaGraphPlan, Storage, VariablePlan
from graphfreeze.planning.records import BatchNormRecord, PhaseRecord
from graphfreeze.savedmodel.protos import MetaGraphDef
from graphfreeze.selection import Phase, Region, Rule, Strategy, complement, cut, difference, empty_region, whole_region

Ruled = Sequence[tuple[Phase, tuple[Source, tuple[Rule, ...]]]]
"""Each phase with the meta graph as it sees it, and its rules."""


@dataclass(frozen=True, slots=True)
class _Held:
    """What one phase holds of a variable."""

    frozen: Region
    enabled: bool


def plan_phases(meta: MetaGraphDef, ruled: Ruled, options: Options) -> tuple[MetaGraphPlan, tuple[str, ...]]:
    """The plan of one meta graph with phases, and warnings.

    Raises:
        NoMatchError, UsageError: a rule does not fit the model, or a strategy does not fit phases.
        UnsupportedModelError: a selected variable is used in a way that cannot be followed or held.
        NothingToTrainError: a phase trains nothing.
    """
    source = ruled[0][1][0]
    trace, labels = source.trace, variable_labels(source.trace)
    described = [describe_variable(trace, v) for v in trace.variables]
    held: dict[Hashable, dict[str, _Held]] = {}
    notes: list[str] = []
    for phase, (seen, rules) in ruled:
        if not rules and not seen.held:
            continue
        resolution = resolve_rules(seen, rules, options)
        notes += [f"phase '{phase.name}': {note}" for note in resolution.notes]
        touched = {v.index: (region, enabled) for v, region, enabled in seen.views.touched(resolution)}
        norms, _ = norms_of(seen, labels, resolution, rules, touched, options)
        _refuse_inference(norms, phase.name)
        for index, (frozen, enabled) in touched.items():
            held.setdefault(index, {})[phase.name] = _Held(frozen, enabled)
    phases = [phase for phase, _ in ruled]
    for variable in trace.variables:
        by_phase = held.get(variable.index, {})
        if not any(h.enabled or not h.frozen.is_empty for h in by_phase.values()):
            continue
        refuse_unknown(trace, variable, labels[variable.index])
        plain = described[variable.index]
        full = _completed(variable, plain, by_phase, [p.name for p in phases])
        described[variable.index] = _in_phases(source, variable, labels[variable.index], plain, full, options)
    planned = meta_graph_of(source, described)
    records = tuple(_record(meta, planned, phase) for phase in phases)
    empty = next((r for r in records if r.trainable == 0), None)
    if empty is not None and not options.allow_empty:
        raise NothingToTrainError(
            f"Phase '{empty.name}' leaves nothing to train: it freezes every trainable element of the model. Freeze "
            "less in it, or pass --allow-empty"
        )
    return replace(planned, phases=records), tuple(dict.fromkeys((*notes, *warnings_of(planned))))


def _refuse_inference(norms: Sequence[BatchNormRecord], phase: str) -> None:
    norm = next((n for n in norms if n.choice == "inference"), None)
    if norm is not None:
        raise UsageError(
            f"Phase '{phase}' would let the batch norm of '{norm.label}' use its stored statistics, and functions of "
            "all phases share it: --batch-norm inference does not go with phases. Use freeze-stats or update"
        )


def _completed(
    variable: Variable, plain: VariablePlan, by_phase: Mapping[str, _Held], phases: Sequence[str]
) -> dict[str, _Held]:
    """What every phase holds: what the source does not train is held where a phase does not turn it on."""
    shape = variable.shape or ()
    turned_on = any(h.enabled for h in by_phase.values()) and plain.kind != "weight"
    found = {phase: by_phase.get(phase, _Held(empty_region(shape), False)) for phase in phases}
    if not turned_on:
        return found
    return {phase: held if held.enabled else _Held(whole_region(shape), False) for phase, held in found.items()}


def _in_phases(
    source: Source,
    variable: Variable,
    label: str,
    plain: VariablePlan,
    held: Mapping[str, _Held],
    options: Options,
) -> VariablePlan:
    enabled = any(h.enabled for h in held.values())
    first, *others = held.values()
    if all(h.frozen == first.frozen for h in others):
        return hold(source, variable, label, plain, first.frozen, enabled, options)
    _check_options(label, options)
    frozen = {phase: h.frozen for phase, h in held.items()}
    if all(region.is_whole or region.is_empty for region in frozen.values()):
        return _whole(source, variable, label, plain, frozen, enabled)
    return _cut(source, variable, label, plain, frozen, enabled)


def _check_options(label: str, options: Options) -> None:
    if options.strict:
        raise UsageError(
            f"--strict reads whole variables from copies, and '{label}' trains in some of the phases: a copy would "
            "not follow. Leave --strict out"
        )
    if options.strategy is Strategy.MASK:
        raise UsageError(
            f"Strategy 'mask' cannot hold '{label}': phases train different elements of it, and with 'mask' an "
            "optimizer would get them all. Leave --strategy out and graphfreeze picks one that can"
        )


def _whole(
    source: Source,
    variable: Variable,
    label: str,
    plain: VariablePlan,
    frozen: Mapping[str, Region],
    enabled: bool,
) -> VariablePlan:
    """Some phases hold the whole variable, the others nothing of it: it needs no storage."""
    shape = whole_region(variable.shape or ())
    trains = tuple(phase for phase, region in frozen.items() if not region.is_whole)
    holds = ", ".join(f"'{phase}'" for phase, region in frozen.items() if region.is_whole)
    if not source.trace.is_tf2:
        _refuse_writes(plain, label)
    return replace(
        plain,
        strategy=Strategy.STOP,
        enabled=enabled,
        reason=f"whole variable, held in {holds}",
        atoms=(Atom(shape, Storage.BASE, True, phases=trains),),
        writes=with_guards(source.trace, variable.index, plain, shape),
        optimizer_bytes=(plain.optimizer_bytes[0], ADAM_SLOTS * plain.bytes * (plain.kind == "weight" or enabled)),
    )


def _refuse_writes(plain: VariablePlan, label: str) -> None:
    write = next(iter(plain.writes), None)
    if write is not None:
        where = f"function '{write.function}'" if write.function else "the main graph"
        raise UnsupportedModelError(
            f"Phases cannot hold '{label}': node '{write.node}' ({write.op}) in {where} writes it, and a TF1 graph has "
            "one such write for all phases. Hold it in every phase alike, or in none"
        )


def _cut(
    source: Source,
    variable: Variable,
    label: str,
    plain: VariablePlan,
    frozen: Mapping[str, Region],
    enabled: bool,
) -> VariablePlan:
    """Phases train different elements: each atom that some phase trains is a variable of its own."""
    written = written_by(source, variable, plain)
    if plain.kind != "weight" and not enabled:
        written = written or f"it is a {plain.kind}"
    if written:
        raise UnsupportedModelError(
            f"Phases cannot hold different elements of '{label}': {written}, and parts of their own would not follow. "
            "Hold it in every phase alike, or whole variables only"
        )
    if variable.key not in source.stored:
        raise UnsupportedModelError(
            f"Cannot freeze part of '{label}': the checkpoint holds no value for it (key {variable.key!r}). Phases "
            "that train different elements need copies of them; freeze the whole variable, or save the model with its "
            "variables"
        )
    trained = {phase: complement(region) for phase, region in frozen.items()}
    shape = variable.shape or ()
    atoms: list[Atom] = []
    for region in cut(shape, trained.values()):
        phases = tuple(p for p, t in trained.items() if difference(region, t).is_empty)
        if not phases:
            atoms.insert(0, Atom(region, Storage.BASE, False))
            continue
        count = sum(a.storage is Storage.PART for a in atoms)
        name = f"{legal_name(label)}/graphfreeze/{Storage.PART.value}" + (f"_{count}" if count else "")
        atoms.append(Atom(region, Storage.PART, True, name, phases))
    held = sum(a.region.count for a in atoms if a.storage is Storage.BASE)
    parts = sum(prod(a.region.storage_shape) for a in atoms if a.storage is Storage.PART)
    return replace(
        plain,
        frozen=held,
        strategy=Strategy.SPLIT,
        enabled=enabled,
        reason=f"phases train different elements: {len(atoms) - (held > 0)} parts",
        atoms=tuple(atoms),
        optimizer_bytes=(plain.optimizer_bytes[0], ADAM_SLOTS * parts * element_bytes(plain.dtype)),
    )


def _record(meta: MetaGraphDef, planned: MetaGraphPlan, phase: Phase) -> PhaseRecord:
    inside = [v.in_phase(phase.name) for v in planned.variables]
    counted = [replace(v, frozen=_held(v)) for v in inside]
    names, size = [], 0
    for variable in inside:
        for name, elements in trained_storage(planned, variable):
            names.append(name)
            size += ADAM_SLOTS * elements * element_bytes(variable.dtype)
    return PhaseRecord(
        phase.name, phase.loss, trainable_elements(counted), size, tuple(names), tuple(_functions(meta, phase.name))
    )


def _held(variable: VariablePlan) -> int:
    if not variable.varies:
        return variable.frozen
    return sum(a.region.count if a.region.shape else variable.elements for a in variable.atoms if not a.trainable)


def trained_storage(planned: MetaGraphPlan, variable: VariablePlan) -> list[tuple[str, int]]:
    """(name, elements) of every variable that an optimizer gets of this one, which is as one phase has it."""
    if variable.kind != "weight" and not variable.enabled:
        return []
    if variable.strategy is Strategy.STOP:
        return []
    if variable.strategy is Strategy.SPLIT:
        return [(a.name or "", prod(a.region.storage_shape)) for a in variable.atoms if a.trainable]
    if variable.varies and not variable.atoms[0].trainable:
        return []
    return [(planned.label(variable), variable.elements)]


def _functions(meta: MetaGraphDef, phase: str) -> list[str]:
    if not len(meta.object_graph_def.nodes):
        return []
    functions = ["/".join(path) for path, _ in public_functions(meta)]
    return [*functions, *(f"signature {key}@{phase}" for key in public_signatures(meta))]
