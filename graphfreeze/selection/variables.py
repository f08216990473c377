"""What `resolve` knows of a variable: no more than names, shape and kind, so that it needs no model to be tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from graphfreeze.selection.glob import is_magic
from graphfreeze.selection.region import Shape
from graphfreeze.selection.syntax import Glob, Selector, Target

Kind: TypeAlias = Literal["weight", "statistic", "state"]

MOST_NEAREST = 5
LEAST_LIKENESS = 0.6
MOST_BEHIND = 0.2
"""A name this much less alike than the best one is no help beside it."""


@dataclass(frozen=True, slots=True)
class VariableView:
    """One variable of a model as selectors see it."""

    id: Hashable
    """Identifies the variable in its model; opaque here."""
    name: str
    """Its name, with or without ':0'; several variables may share one."""
    path: str
    """Its path in the object graph, unique; empty where there is no object graph."""
    key: str | None
    """Its key in the checkpoint; None if no value is stored."""
    shape: Shape | None
    """None if neither the graph nor the checkpoint knows it."""
    dtype: str
    """Its dtype's name, such as 'float32'."""
    kind: Kind
    trainable: bool
    """Whether the source trains it."""

    @property
    def short_name(self) -> str:
        """The name without a trailing ':0'."""
        return self.name.removesuffix(":0")

    @property
    def shape_text(self) -> str:
        """The shape as in messages."""
        return "unknown" if self.shape is None else str(self.shape)


def names_variable(target: Target, variable: VariableView) -> bool:
    """Whether the target matches the variable's name or its path."""
    return target.matches(variable.short_name) or bool(variable.path and target.matches(variable.path))


def labels(variables: Sequence[VariableView]) -> dict[Hashable, str]:
    """What to call each variable, by id, in messages: its name, or its path where several have the name."""
    uses = Counter(variable.short_name for variable in variables)
    return {
        variable.id: variable.path if uses[variable.short_name] > 1 and variable.path else variable.short_name
        for variable in variables
    }


def nearest_names(selector: Selector, variables: Sequence[VariableView]) -> list[str]:
    """Up to five names that resemble a selector which matched nothing, most alike first.

    Of each variable the name or the path, whichever is more alike. A glob is compared component by component, so that
    'conv2d_9/*' finds 'conv2d_8/kernel'.
    """
    text = selector.target.text if isinstance(selector.target, Glob) else selector.target.regex
    likeness: dict[str, float] = {}
    for variable in variables:
        spellings = filter(None, (variable.short_name, variable.path))
        score, name = max(((_likeness(text.removesuffix(":0"), it), it) for it in spellings), key=lambda pair: pair[0])
        likeness.setdefault(name, score)
    least = max(LEAST_LIKENESS, max(likeness.values(), default=0.0) - MOST_BEHIND)
    ranked = sorted((name for name in likeness if likeness[name] >= least), key=lambda name: -likeness[name])
    return ranked[:MOST_NEAREST]


def _likeness(glob: str, name: str) -> float:
    whole = _ratio(glob, name)
    wanted, given = glob.split("/"), name.split("/")
    if wanted[0] == "**":
        wanted = wanted[1:]
        given = given[-len(wanted) :] if wanted else []
    elif wanted[-1] == "**":
        wanted = wanted[:-1]
        given = given[: len(wanted)]
    if not wanted or len(wanted) != len(given):
        return whole
    return max(whole, min(map(_component_likeness, wanted, given)))


def _component_likeness(wanted: str, given: str) -> float:
    if is_magic(wanted) and wanted.strip("*?") == "":
        return 1.0
    return _ratio(wanted, given)


def _ratio(a: str, b: str) -> float:
    import difflib

    return difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()
