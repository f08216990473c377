"""``finalize_into``: the trained values of a frozen object go back into the object that it was made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphfreeze.errors import UnsupportedModelError, UsageError
from graphfreeze.runtime.exported import Origin, SourceVariable, origin_of
from graphfreeze.runtime.loaded import assign_effective, effective, object_at, read_info
from graphfreeze.savedmodel import NodePath


@dataclass(frozen=True, slots=True)
class CopiedBack:
    """What ``finalize_into`` did."""

    model: Any
    """The object that was written to."""
    variables: tuple[str, ...]
    """Names of the variables whose values changed, in the order of the source."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, schema 1."""
        return {"schema": 1, "command": "finalize_into", "variables": list(self.variables)}


def finalize_into(frozen: Any) -> CopiedBack:
    """Copies the effective values of a frozen object into the object that ``freeze`` was given.

    Weights, statistics and state (counters, seeds) are copied; the state of a Keras optimizer belongs to the frozen
    model's variables and is not. The frozen object can be trained on. Either all variables are written or none.

    Args:
        frozen: What ``freeze`` returned.

    Returns:
        The object that was written to, and the names of the variables that changed.

    Raises:
        UsageError: the object does not come from ``freeze``.
        UnsupportedModelError: the object that was frozen has other variables now.
    """
    origin = origin_of(frozen)
    if origin is None:
        raise UsageError(
            "This object does not come from graphfreeze.freeze, so there is no object to copy into. For a SavedModel "
            "on disk use graphfreeze.finalize(model, out)"
        )
    _check_unchanged(origin)
    values = _values(origin)
    write = _Writer(origin.exported.original)
    changed = tuple(s.name for s in origin.sources if write(s, values[s.path]))
    return CopiedBack(origin.exported.original, changed)


def _check_unchanged(origin: Origin) -> None:
    """Variables are held by identity: one that was put in the place of another must not be left out, or written."""
    now = origin.exported.variables()
    gone = [s.name for s in origin.sources if s.variable is None or now.get(s.key) is not s.variable]
    if gone:
        names = ", ".join(f"'{n}'" for n in gone[:3]) + (f" and {len(gone) - 3} more" if len(gone) > 3 else "")
        raise UnsupportedModelError(
            f"The object that was frozen has changed: {names} is another variable now, or none. Nothing was written. "
            "Read the values with graphfreeze.value(frozen, NAME)"
        )


def _values(origin: Origin) -> dict[str, NDArray[Any]]:
    info = read_info(origin.loaded)
    facts = {d["path"]: d for d in info["variables"]}
    return {
        s.path: effective(origin.loaded, info["places"][s.path], facts[s.path])
        if s.path in facts
        else np.asarray(object_at(origin.loaded, s.place).numpy())
        for s in origin.sources
    }


class _Writer:
    """Writes one variable of an object, through the freeze of one that is frozen; False where it has the value."""

    def __init__(self, original: Any) -> None:
        before = origin_of(original)
        self.loaded = original if before is None else before.loaded
        frozen = hasattr(getattr(self.loaded, "graphfreeze", None), "info")
        self.info = read_info(self.loaded) if frozen else {"variables": [], "places": {}}
        self.facts = {d["path"]: d for d in self.info["variables"]}

    def __call__(self, source: SourceVariable, value: NDArray[Any]) -> bool:
        data = self.facts.get(source.path)
        if data is None:
            if _same_bits(np.asarray(source.variable.numpy()), value):
                return False
            source.variable.assign(value)
            return True
        place: NodePath = tuple(self.info["places"][source.path])
        if _same_bits(effective(self.loaded, place, data), value):
            return False
        assign_effective(self.loaded, place, data, value)
        return True


def _same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.dtype == object or one.dtype.kind in "SU":
        return bool(np.array_equal(one, other))
    return one.shape == other.shape and one.tobytes() == other.tobytes()
