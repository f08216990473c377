"""Lays out a rewritten model and its plain counterpart, ready to be run side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from graphfreeze.errors import UsageError
from graphfreeze.graph.randomness import seed_random_ops
from graphfreeze.graph.trace import trace_meta_graph
from graphfreeze.lowering.holding import Evidence
from graphfreeze.passes.by_hand import hold_by_hand
from graphfreeze.passes.counterpart import compare_values, meta_like
from graphfreeze.passes.evidence import gather_evidence
from graphfreeze.passes.finalize import take_off
from graphfreeze.passes.marks import read_marks
from graphfreeze.passes.presence import has_marks, is_rewritten
from graphfreeze.passes.undo_phases import phase_names
from graphfreeze.passes.undo_steps import carries_steps, take_steps_off
from graphfreeze.savedmodel import Draft, digest, open_draft, slot_variables, write_shadow
from graphfreeze.savedmodel.protos import MetaGraphDef

_PHASES_APART = (
    "functions of the model write variables that are frozen, so the functions of phases are not run beside the source: "
    "only those outside of phases were"
)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two models on disk, and what must hold of the rewritten one."""

    plain: Path
    rewritten: Path
    evidence: tuple[Evidence, ...]
    """One for each meta graph that carries a freeze."""
    trained: bool
    old_keras: bool
    """Whether one of them holds slots of an optimizer, as only Keras 2 saves them."""
    warnings: tuple[str, ...]


def prepare_pair(source: Draft, rewritten: Draft, folder: Path) -> Pair:
    """Writes to ``folder`` what has to be written to run both.

    Raises:
        UsageError: ``rewritten`` carries no freeze, or was not made from ``source``.
        UnsupportedModelError: the marks of the freeze are damaged.
    """
    if not is_rewritten(rewritten):
        swapped = is_rewritten(source)
        hint = "Give the source first, then the result" if swapped else "Give a model that graphfreeze rewrote"
        raise UsageError(f"'{rewritten.model.directory}' carries no freeze, so there is nothing to verify. {hint}")
    rewritten = _without_steps(rewritten, folder / "held")
    name, known_as = source.model.directory, digest(source.model)
    if is_rewritten(source):
        take_off(source)
        source.write(folder / "source")
        source = open_draft(folder / "source")
    likes = [(meta, meta_like(source, meta, name, rewritten)) for meta in _marked(rewritten)]
    evidence = [gather_evidence(rewritten, meta, source, like) for meta, like in likes]
    compared = [compare_values(rewritten, m, source, n, e, name) for (m, n), e in zip(likes, evidence, strict=True)]
    sources = {digest_ for e in evidence for digest_ in e.sources}
    plain, trained = source, any(c.trained for c in compared)
    if trained or any(e.saved_again for e in evidence):
        plain = _finalized(rewritten, folder / "plain")
        evidence = [gather_evidence(rewritten, m, plain, meta_like(plain, m, name, rewritten)) for m, _ in likes]
    by_hand = [
        hold_by_hand(plain, meta_like(plain, m, name, rewritten), e) for (m, _), e in zip(likes, evidence, strict=True)
    ]
    evidence = [replace(e, problems=e.problems + c.problems) for (e, _), c in zip(by_hand, compared, strict=True)]
    warnings: tuple[str, ...] = () if known_as in sources or not sources else (_other_digest(name),)
    if any(changed for _, changed in by_hand):
        warnings += (_PHASES_APART,) * any(_phases(rewritten, m) for m, _ in likes)
    else:
        phased = [(m, meta_like(plain, m, name, rewritten), p) for m, _ in likes for p in _phases(rewritten, m)]
        evidence += [gather_evidence(rewritten, m, plain, like, phase) for m, like, phase in phased]
    return Pair(
        _seeded(plain, folder / "plain-seeded", changed=any(changed for _, changed in by_hand)),
        _seeded(rewritten, folder / "rewritten-seeded"),
        tuple(evidence),
        trained,
        old_keras=any(slot_variables(m.object_graph_def) for m in plain.model.proto.meta_graphs),
        warnings=warnings,
    )


def _without_steps(draft: Draft, target: Path) -> Draft:
    """The model as it was before ``train-step``: a signature that saves to a path is not called with a made-up one."""
    if not carries_steps(draft):
        return draft
    for meta in draft.model.proto.meta_graphs:
        take_steps_off(draft, meta)
    draft.write(target)
    return open_draft(target)


def _phases(draft: Draft, meta: MetaGraphDef) -> tuple[str, ...]:
    return phase_names(read_marks(draft, meta, trace_meta_graph(draft, meta)))


def _marked(draft: Draft) -> list[MetaGraphDef]:
    return [meta for meta in draft.model.proto.meta_graphs if has_marks(meta)]


def _finalized(rewritten: Draft, target: Path) -> Draft:
    plain = open_draft(rewritten.model.directory)
    take_off(plain)
    plain.write(target)
    return open_draft(target)


def _other_digest(source: Path) -> str:
    return f"'{source}' is not, byte for byte, the model that was rewritten. It has the same variables, though"


def _seeded(draft: Draft, shadow: Path, *, changed: bool = False) -> Path:
    """Where the model lies; a shadow of it where it was changed, or random ops had to be given a seed."""
    if not sum(seed_random_ops(meta) for meta in draft.model.proto.meta_graphs) and not changed:
        return draft.model.directory
    write_shadow(draft.model, shadow)
    return shadow
