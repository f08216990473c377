"""What a verification found, as plain values with a JSON form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

SCHEMA = 1
Status = Literal["ok", "failed", "not run", "-"]
"""``-`` where there is nothing to check, e.g. no gradient through integers."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check at one place."""

    check: str
    """``forward``, ``poison``, ``gradients (eager)``, ``training adamw (function)``, ``flags``, ..."""
    where: str
    """A function, a signature, a variable, or nothing."""
    status: Status
    what: str = ""
    """What is wrong, or why it was not run."""


@dataclass(frozen=True, slots=True)
class FunctionResult:
    """One function or signature: the status of each check."""

    name: str
    forward: Status
    poison: Status
    gradients: tuple[Status, Status]
    """Eagerly, and inside a ``tf.function``."""


@dataclass(frozen=True, slots=True)
class VariableResult:
    """One variable that is frozen in part or whole, or trains."""

    name: str
    frozen: int
    trainable: int
    reached: bool | None
    """Whether a gradient reaches what trains; None where nothing trains or no gradient was computed."""
    moved: int | None
    """How many trainable elements moved, in the training run that moved most; None where none was run."""
    change: float | None
    """The largest change of a frozen element over all runs."""


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """One training run on a fresh load."""

    optimizer: str
    mode: str
    steps: int
    frozen: int
    change: float
    """The largest change of a frozen element; must be 0."""
    trainable: int
    moved: int
    status: Status


@dataclass(frozen=True, slots=True)
class Rows:
    """What was found in one meta graph."""

    functions: tuple[FunctionResult, ...]
    variables: tuple[VariableResult, ...]
    training: tuple[TrainingResult, ...]
    findings: tuple[Finding, ...]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Rows:
        """Reads the form of ``dataclasses.asdict`` back, from JSON."""
        return cls(
            tuple(FunctionResult(**{**f, "gradients": tuple(f["gradients"])}) for f in data["functions"]),
            tuple(VariableResult(**v) for v in data["variables"]),
            tuple(TrainingResult(**t) for t in data["training"]),
            tuple(Finding(**f) for f in data["findings"]),
        )


@dataclass(frozen=True, slots=True)
class Verified:
    """All that a verification found."""

    source: str
    rewritten: str
    trained: bool
    """Whether values differ from the source's, so that ``finalize``'s result was compared with."""
    warnings: tuple[str, ...] = ()
    functions: tuple[FunctionResult, ...] = ()
    variables: tuple[VariableResult, ...] = ()
    training: tuple[TrainingResult, ...] = ()
    findings: tuple[Finding, ...] = ()
    """What failed and what was not run, in the order of the checks."""

    @property
    def failures(self) -> tuple[Finding, ...]:
        """What failed."""
        return tuple(f for f in self.findings if f.status == "failed")

    @property
    def first_offender(self) -> str:
        """The first failure in words, and how many more there are; nothing where there is none."""
        if not self.failures:
            return ""
        first, more = self.failures[0], len(self.failures) - 1
        where = f" of '{first.where}'" if first.where else ""
        others = f" ({more:,} more failed)" if more else ""
        return f"'{self.rewritten}' fails the check '{first.check}'{where}: {first.what}{others}"

    def extended(self, rows: Iterable[Rows]) -> Verified:
        """With what was found in each meta graph."""
        found = list(rows)
        return replace(
            self,
            functions=tuple(f for r in found for f in r.functions),
            variables=tuple(v for r in found for v in r.variables),
            training=tuple(t for r in found for t in r.training),
            findings=tuple(f for r in found for f in r.findings),
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, schema 1."""
        data = {"schema": SCHEMA, "command": "verify", "passed": not self.failures, **asdict(self)}
        for row in (*data["variables"], *data["training"]):
            # JSON has no infinity.
            row["change"] = str(row["change"]) if row["change"] == float("inf") else row["change"]
        return data
