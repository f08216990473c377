"""What became of one variable, as JSON that travels with the graph.

The same fact stands on the last node of every merge (node marks survive every way of saving again) and in ``info``.
A region is written out where that is short; a long one is read back from the geometry that the graph holds anyway, so
that the .pb does not grow with the weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.lowering.geometry import row_set
from graphfreeze.lowering.merge import Merge, Overlay
from graphfreeze.planning.plan import Storage
from graphfreeze.selection import (
    Region,
    Span,
    complement,
    empty_region,
    mask_region,
    points_region,
    region_from_dict,
    region_to_dict,
    rows_region,
    union,
    whole_region,
)

FORMAT = 1
"""Version of everything that a rewrite leaves in a model."""

_INLINE = 2048

Geometry = Callable[[str], NDArray[np.generic] | None]
"""Gives a geometry array by its key, e.g. ``copy0/indices``; None where the graph does not hold it."""


@dataclass(frozen=True, slots=True)
class Held:
    """One region of a variable that is stored in a variable of its own (``role``), or in the base (None)."""

    region: Region
    role: str | None
    trainable: bool
    name: str | None
    phases: tuple[str, ...] = ()
    """The phases that train it, where some do and others do not."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What became of one variable."""

    name: str
    path: str
    key: str | None
    dtype: str
    shape: tuple[int, ...]
    trainable: bool
    """The flag in the source."""
    strategy: str | None
    copy: str | None
    strict: bool
    enabled: bool
    held: tuple[Held, ...]
    masks: dict[str, str]
    """Role -> name of the variables that hold geometry."""
    phases: tuple[str, ...] = ()
    """The phases that train the variable whole, where the others hold all of it."""

    @property
    def varies(self) -> bool:
        """Whether some phases train what others hold."""
        return bool(self.phases) or any(h.phases for h in self.held)

    def trains(self, held: Held, phase: str | None) -> bool:
        """Whether a phase trains a region of the variable; without phases, whether anything does."""
        return held.trainable and (not held.phases or phase in held.phases)

    def frozen(self, phase: str | None = None) -> Region:
        """The frozen elements in a phase; without one, those that no phase trains."""
        whole = whole_region(self.shape)
        if self.phases:
            return empty_region(self.shape) if phase is None or phase in self.phases else whole
        if not self.held:
            return whole
        if any(h.trainable for h in self.held):
            trained = (h.region for h in self.held if h.trainable and (phase is None or self.trains(h, phase)))
            return complement(reduce(union, trained, empty_region(self.shape)))
        return self.held[0].region


def fact(merge: Merge, *, beside_constants: bool = True) -> str:
    """The JSON of a merge; a long region is left to the geometry: to constants beside the merge, else to variables."""
    plan = merge.plan
    stored = [v.role for v in merge.variables if v.role.startswith("mask:")]
    held = []
    for overlay in merge.overlays:
        region: dict[str, Any] = region_to_dict(overlay.region)
        elsewhere = beside_constants or any(role.startswith(f"mask:{overlay.prefix}/") for role in stored)
        if elsewhere and len(json.dumps(region)) > _INLINE:
            region = _reference(overlay)
        name = next((v.name for v in merge.variables if v.role == overlay.role), None)
        told = {"region": region, "role": overlay.role, "trainable": overlay.is_part, "name": name}
        held.append(told | ({"phases": overlay.phases} if overlay.phases else {}))
    data = {
        "format": FORMAT,
        "name": plan.name,
        "path": plan.path,
        "key": plan.key,
        "dtype": plan.dtype,
        "shape": list(merge.shape),
        "trainable": plan.trainable,
        "strategy": plan.strategy,
        "copy": plan.copy,
        "strict": plan.strict,
        "enabled": plan.enabled,
        "held": held,
        "masks": {v.role: v.name for v in merge.variables if v.role.startswith("mask:")},
    }
    whole = next((a.phases for a in plan.atoms if a.phases and a.storage is Storage.BASE), ())
    data |= {"phases": whole} if whole else {}
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def _reference(overlay: Overlay) -> dict[str, Any]:
    """Where the geometry of a long region is found; ``rows`` says which rows ``row_bits`` holds without a row map."""
    region = overlay.region
    rows = row_set(region).rows
    span = [rows.start, rows.stop, rows.step] if isinstance(rows, Span) else None
    axis = getattr(region, "axis", None)
    return {"geometry": overlay.prefix, "kind": type(region).__name__, "axis": axis, "rows": span}


def read_fact(text: str | dict[str, Any], geometry: Geometry) -> Fact:
    """Reads a fact back.

    Raises:
        UnsupportedModelError: it was written by a newer version, or its geometry is gone.
    """
    data = json.loads(text) if isinstance(text, str) else text
    check_format(data.get("format"))
    shape = tuple(data["shape"])
    held = tuple(
        Held(
            _region(h["region"], shape, data["name"], geometry),
            h["role"],
            h["trainable"],
            h["name"],
            tuple(h.get("phases", ())),
        )
        for h in data["held"]
    )
    names = ("name", "path", "key", "dtype", "trainable", "strategy", "copy", "strict", "enabled", "masks")
    return Fact(shape=shape, held=held, phases=tuple(data.get("phases", ())), **{n: data[n] for n in names})


def check_format(found: object) -> None:
    """Refuses what a newer graphfreeze wrote."""
    if not isinstance(found, int) or found > FORMAT:
        raise UnsupportedModelError(
            f"The model was rewritten by a newer graphfreeze: its format is {found}, this version reads up to "
            f"{FORMAT}. Upgrade with: pip install --upgrade graphfreeze"
        )


def _region(data: dict[str, Any], shape: tuple[int, ...], name: str, geometry: Geometry) -> Region:
    if "geometry" not in data:
        return region_from_dict(data)
    prefix = data["geometry"]

    def get(key: str) -> NDArray[np.generic] | None:
        return geometry(f"{prefix}/{key}")

    indices, table, bits, row_bits = get("indices"), get("map"), get("bits"), get("row_bits")
    if indices is not None:
        listed = np.asarray(indices, np.int64)
        return rows_region(shape, data["axis"], listed) if data["kind"] == "Rows" else points_region(shape, listed)
    if bits is not None:
        return mask_region(_unpack(bits, shape[0], shape))
    if row_bits is not None and (table is not None or data["rows"] is not None):
        rows = np.flatnonzero(np.asarray(table) >= 0) if table is not None else np.arange(*data["rows"])
        flags = np.zeros((shape[0], prod(shape[1:])), np.bool_)
        flags[rows] = _unpack(row_bits, len(rows), (len(rows), prod(shape[1:])))
        return mask_region(flags.reshape(shape))
    if data["kind"] == "Rows" and table is not None:
        return rows_region(shape, data["axis"], np.flatnonzero(np.asarray(table) >= 0))
    raise UnsupportedModelError(
        f"The frozen elements of '{name}' cannot be told any more: the model does not hold '{prefix}'. "
        "Finalize the model before it is exported by another tool."
    )


def _unpack(bits: NDArray[np.generic], rows: int, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    row = prod(shape) // max(rows, 1)
    return (
        np.unpackbits(np.asarray(bits, np.uint8), axis=1, count=row, bitorder="little").astype(np.bool_).reshape(shape)
    )
