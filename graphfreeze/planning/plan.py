"""The plan: everything a rewrite will do, as one frozen value that can be printed, compared, stored and executed.

``graphfreeze plan`` prints it and ``rewrite`` executes exactly it, so nothing is decided twice. The JSON form follows
the schema that all commands share; ``digest`` ties a stored plan to the model it was made for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from graphfreeze.errors import InputOutputError, UsageError
from graphfreeze.planning.records import BatchNormRecord, FreezeRecord, PhaseRecord, Training
from graphfreeze.selection import Copy, Region, Strategy, region_from_dict, region_to_dict

SCHEMA = 1


class Storage(StrEnum):
    """What holds the value of an atom."""

    BASE = "base"
    """The original variable."""
    PART = "trainable"
    """A new trainable variable ``NAME/graphfreeze/trainable``."""
    COPY = "frozen"
    """A new non-trainable variable ``NAME/graphfreeze/frozen``."""


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """One read of a variable."""

    function: str
    node: str
    op: str
    access: str


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """One write of a variable inside the graph, and the guard that keeps it off frozen elements."""

    function: str
    node: str
    op: str
    guard: str | None = None
    gradient: str | None = None
    """Where the gradient behind it is masked, so that norms leave frozen elements out; None where there is no norm."""


@dataclass(frozen=True, slots=True)
class Atom:
    """A region of a variable with one storage."""

    region: Region
    storage: Storage
    trainable: bool
    name: str | None = None
    """Name of the new variable, for ``PART`` and ``COPY``."""
    phases: tuple[str, ...] = ()
    """Names of the phases that train it, where some do and others do not."""


@dataclass(frozen=True, slots=True)
class VariablePlan:
    """One variable: what it is, and what becomes of it. ``strategy`` is None where it is left alone."""

    name: str
    path: str
    key: str | None
    dtype: str
    shape: tuple[int, ...] | None
    kind: str
    trainable: bool
    elements: int
    bytes: int
    frozen: int = 0
    """Number of frozen elements."""
    strategy: Strategy | None = None
    copy: Copy | None = None
    strict: bool = False
    enabled: bool = False
    """True where ``--enable`` turns on a variable that the source holds untrainable."""
    reason: str = ""
    reads: tuple[ReadRecord, ...] = ()
    writes: tuple[WriteRecord, ...] = ()
    optimizer_bytes: tuple[int, int] = (0, 0)
    """Bytes of optimizer slots with Adam (two per trainable element), before and after."""
    atoms: tuple[Atom, ...] = ()
    part_of: str | None = None
    """The partitioned variable that selectors name, where this is a part of one."""

    @property
    def varies(self) -> bool:
        """Whether some phases train what others hold."""
        return any(atom.phases for atom in self.atoms)

    def in_phase(self, phase: str | None) -> VariablePlan:
        """What becomes of the variable in the functions of one phase; without phases, what becomes of it."""
        if phase is None or not self.varies:
            return self
        atoms = tuple(replace(a, trainable=phase in a.phases) if a.phases else a for a in self.atoms)
        free = self.strategy is Strategy.STOP and atoms[0].trainable
        return replace(self, atoms=atoms, strategy=None if free else self.strategy)

    @property
    def region(self) -> Region | None:
        """The frozen elements, or None where nothing is frozen."""
        frozen = [atom.region for atom in self.atoms if not atom.trainable]
        return frozen[0] if frozen else None


@dataclass(frozen=True, slots=True)
class MetaGraphPlan:
    """The variables of one meta graph, in the order of the object graph."""

    tags: tuple[str, ...]
    signatures: tuple[str, ...]
    variables: tuple[VariablePlan, ...]
    format: str = "TF2"
    """``TF2`` (has functions and an object graph) or ``TF1``."""
    training: Training | None = None
    """Whether it can be trained; ``inspect`` says so."""
    freeze: FreezeRecord | None = None
    """Of a rewritten model: what the rewrite noted of itself."""
    phases: tuple[PhaseRecord, ...] = ()
    """The stages of training, in the order of the spec; functions outside of them train what the first one does."""
    batch_norms: tuple[BatchNormRecord, ...] = ()
    """Those that the graph trains with, where something is to be frozen."""

    def label(self, variable: VariablePlan) -> str:
        """What a variable is called in messages: its name, or its path where names repeat."""
        return variable.path if sum(v.name == variable.name for v in self.variables) > 1 else variable.name

    def touched(self) -> tuple[VariablePlan, ...]:
        """The variables that the plan changes."""
        return tuple(v for v in self.variables if v.strategy is not None or v.enabled)


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole model. ``command`` is the one that made it: inspect, plan or rewrite."""

    command: str
    model: str
    digest: str
    meta_graphs: tuple[MetaGraphPlan, ...]
    spec: dict[str, Any]
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, schema 1."""
        return {
            "schema": SCHEMA,
            "command": self.command,
            "model": self.model,
            "digest": self.digest,
            "meta_graphs": [_meta_graph_to_dict(m) for m in self.meta_graphs],
            "warnings": list(self.warnings),
            "spec": self.spec,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Plan:
        """Reads ``to_dict``'s form back.

        Raises:
            UsageError: the data is not a plan of this schema.
        """
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            found = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise UsageError(
                f"This is not a plan that graphfreeze can execute: expected schema {SCHEMA}, found {found}. "
                "Make one with: graphfreeze plan MODEL ... --json"
            )
        try:
            return cls(
                command=data["command"],
                model=data["model"],
                digest=data["digest"],
                meta_graphs=tuple(_meta_graph_from_dict(m) for m in data["meta_graphs"]),
                spec=data["spec"],
                warnings=tuple(data["warnings"]),
            )
        except (KeyError, TypeError, ValueError, InputOutputError) as error:
            problem = f"{error} is missing" if isinstance(error, KeyError) else str(error).removesuffix(".")
            raise UsageError(
                f"The plan is damaged: {problem}. Make it anew with: graphfreeze plan MODEL ... --json"
            ) from error


def _meta_graph_to_dict(meta: MetaGraphPlan) -> dict[str, Any]:
    return {
        "tags": list(meta.tags),
        "format": meta.format,
        "signatures": list(meta.signatures),
        "training": None if meta.training is None else meta.training.to_dict(),
        "freeze": None if meta.freeze is None else meta.freeze.to_dict(),
        "phases": [phase.to_dict() for phase in meta.phases],
        "variables": [_variable_to_dict(v) for v in meta.variables],
        "batch_norms": [n.to_dict() for n in meta.batch_norms],
    }


def _meta_graph_from_dict(data: dict[str, Any]) -> MetaGraphPlan:
    return MetaGraphPlan(
        tags=tuple(data["tags"]),
        signatures=tuple(data["signatures"]),
        variables=tuple(_variable_from_dict(v) for v in data["variables"]),
        format=data["format"],
        phases=tuple(PhaseRecord.from_dict(p) for p in data.get("phases", ())),
        batch_norms=tuple(BatchNormRecord.from_dict(n) for n in data["batch_norms"]),
    )


def _variable_to_dict(v: VariablePlan) -> dict[str, Any]:
    return {
        "name": v.name,
        "path": v.path,
        "part_of": v.part_of,
        "key": v.key,
        "dtype": v.dtype,
        "shape": None if v.shape is None else list(v.shape),
        "kind": v.kind,
        "trainable": v.trainable,
        "elements": v.elements,
        "bytes": v.bytes,
        "frozen": v.frozen,
        "strategy": v.strategy,
        "copy": v.copy,
        "strict": v.strict,
        "enabled": v.enabled,
        "reason": v.reason,
        "reads": [{"function": r.function, "node": r.node, "op": r.op, "access": r.access} for r in v.reads],
        "writes": [
            {"function": w.function, "node": w.node, "op": w.op, "guard": w.guard, "gradient": w.gradient}
            for w in v.writes
        ],
        "optimizer_bytes": {"before": v.optimizer_bytes[0], "after": v.optimizer_bytes[1]},
        "atoms": [
            {
                "region": region_to_dict(a.region),
                "storage": a.storage,
                "trainable": a.trainable,
                "name": a.name,
                "phases": list(a.phases),
            }
            for a in v.atoms
        ],
    }


def _variable_from_dict(data: dict[str, Any]) -> VariablePlan:
    return VariablePlan(
        name=data["name"],
        path=data["path"],
        part_of=data["part_of"],
        key=data["key"],
        dtype=data["dtype"],
        shape=None if data["shape"] is None else tuple(data["shape"]),
        kind=data["kind"],
        trainable=data["trainable"],
        elements=data["elements"],
        bytes=data["bytes"],
        frozen=data["frozen"],
        strategy=None if data["strategy"] is None else Strategy(data["strategy"]),
        copy=None if data["copy"] is None else Copy(data["copy"]),
        strict=data["strict"],
        enabled=data["enabled"],
        reason=data["reason"],
        reads=tuple(ReadRecord(**r) for r in data["reads"]),
        writes=tuple(WriteRecord(**w) for w in data["writes"]),
        optimizer_bytes=(data["optimizer_bytes"]["before"], data["optimizer_bytes"]["after"]),
        atoms=tuple(
            Atom(
                region_from_dict(a["region"]),
                Storage(a["storage"]),
                a["trainable"],
                a["name"],
                tuple(a.get("phases", ())),
            )
            for a in data["atoms"]
        ),
    )
