"""What a comparison found, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Subject: TypeAlias = Literal[
    "meta graph", "signature", "function", "node", "object", "variable", "flag", "tensor", "file"
]
What: TypeAlias = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. ``added`` is what only the second model has, ``removed`` what only the first has."""

    subject: Subject
    what: What
    name: str
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"subject": self.subject, "what": self.what, "name": self.name, "detail": self.detail}


@dataclass(frozen=True, slots=True)
class ValueChange:
    """A stored tensor of the same type and shape whose bits differ."""

    name: str
    """Name of the variable, or the key of a tensor that is none."""
    key: str
    elements: int
    changed: int
    largest: float | None
    """Largest absolute difference; None for strings. NaN where a value became NaN or was it."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON; a number that JSON has not is a string."""
        largest = self.largest
        odd = largest is not None and largest - largest != 0
        return {
            "name": self.name,
            "key": self.key,
            "elements": self.elements,
            "changed": self.changed,
            "largest": str(largest) if odd else largest,
        }


@dataclass(frozen=True, slots=True)
class FrozenElements:
    """Effective values at frozen elements, in two states of one freeze, or in a frozen model and its original."""

    elements: int
    changed: int
    variables: tuple[ValueChange, ...] = ()
    """The variables in which frozen elements changed."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        variables = [v.to_dict() for v in self.variables]
        return {"elements": self.elements, "changed": self.changed, "variables": variables}


@dataclass(frozen=True, slots=True)
class Difference:
    """All differences between the models ``a`` and ``b``."""

    a: str
    b: str
    changes: tuple[Change, ...]
    values: tuple[ValueChange, ...]
    frozen: FrozenElements | None
    """None where neither model carries a freeze, or the two carry different ones."""
    warnings: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether the two are the same model, up to the names of functions."""
        return not self.changes and not self.values

    def to_dict(self) -> dict[str, Any]:
        """As JSON, schema 1."""
        return {
            "schema": 1,
            "command": "diff",
            "a": self.a,
            "b": self.b,
            "equal": self.equal,
            "changes": [change.to_dict() for change in self.changes],
            "values": [value.to_dict() for value in self.values],
            "frozen": None if self.frozen is None else self.frozen.to_dict(),
            "warnings": list(self.warnings),
        }
