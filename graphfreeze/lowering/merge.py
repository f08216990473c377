"""What a merge is made of: a base, overlays over it, and the geometry that says where they lie.

Every strategy is the same picture. The base is the original variable; each overlay replaces a region of it:

| strategy         | base                | overlays                                            |
|------------------|---------------------|-----------------------------------------------------|
| ``stop``         | behind StopGradient | none                                                |
| ``stop`` strict  | unused              | the whole, from the copy, behind StopGradient       |
| ``split``        | behind StopGradient | the trainable region, from the part                 |
| ``mask`` snapshot| trains              | the frozen region, from the copy, behind StopGradient |
| ``mask`` live    | trains              | the frozen region, from the base, behind StopGradient |

Where phases train different elements, ``split`` has an overlay for each part, and in the functions of one phase the
parts that it holds are behind StopGradient. Geometry (indices, row maps, packed masks) is a Const below 64 KiB and a
variable ``NAME/graphfreeze/mask`` above, so that the .pb never grows with the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphfreeze.graph.ops import Access
from graphfreeze.lowering.emitter import Emitter
from graphfreeze.lowering.geometry import full_geometry, gather_geometry, live_rows
from graphfreeze.planning import Storage, VariablePlan
from graphfreeze.savedmodel import DTYPE_NUMBERS, dtype_name, dtype_number
from graphfreeze.selection import Copy, Region, Strategy, complement, empty_region, union, whole_region
from graphfreeze.selection.axis import AxisSet

CONST_LIMIT = 64 * 1024
"""Bytes from which geometry is a variable and not a Const."""


@dataclass(frozen=True, slots=True)
class NewVariable:
    """A variable that the rewrite adds. Its first value is ``value``, or ``region`` of the original's."""

    role: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    trainable: bool
    region: Region | None = None
    value: NDArray[np.generic] | None = None


@dataclass(frozen=True, slots=True)
class Overlay:
    """A region that is laid over the base. ``role`` names its storage; None takes the base itself (live)."""

    region: Region
    role: str | None
    trainable: bool
    """Whether a gradient reaches it, in the functions that the merge is made for."""
    prefix: str
    """Prefix of its geometry."""
    phases: tuple[str, ...] = ()
    """The phases that train it, where some do and others do not."""

    @property
    def is_part(self) -> bool:
        """Whether its storage is a variable that trains, now or in another phase."""
        return self.role is not None and self.role.startswith("part:")


@dataclass(frozen=True, slots=True)
class Merge:
    """How the effective value of one variable is put together."""

    plan: VariablePlan
    dtype: int
    shape: tuple[int, ...]
    base_trains: bool
    overlays: tuple[Overlay, ...]
    geometry: dict[str, NDArray[np.generic]]
    variables: tuple[NewVariable, ...]
    live: AxisSet | None
    """Rows (axis 0) that a lookup must take from a base that trains; None means all of them."""

    @property
    def merges_reads(self) -> bool:
        """Whether reads see something else than the variable. A statistic or state is held by guards alone.

        So is a variable that some phase trains whole, in a TF1 graph, which serves all phases.
        """
        free = self.plan.strategy is Strategy.STOP and self.base_trains
        return (self.plan.kind == "weight" or self.plan.enabled) and not free

    @property
    def held(self) -> Overlay:
        """What writes must not change."""
        whole = Overlay(whole_region(self.shape), None, False, "whole")
        return next((o for o in self.overlays if not o.trainable), whole)

    @property
    def geometry_roles(self) -> tuple[str, ...]:
        """Roles of the new variables that hold geometry."""
        return tuple(role for role in self.roles if role.startswith("mask:"))

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the new variables, in a fixed order."""
        return tuple(v.role for v in self.variables)

    @property
    def typed(self) -> tuple[int, tuple[int, ...] | None]:
        """Dtype and shape of the effective value; the shape is None where it is not known."""
        return self.dtype, self.plan.shape

    def replaces_base(self) -> Overlay | None:
        """The overlay that covers everything, if there is one."""
        return next((o for o in self.overlays if o.region.is_whole), None)


class MergeContext:
    """A merge at one place: where nodes go, and the handles of the variable and its storages there."""

    def __init__(self, merge: Merge, emitter: Emitter, handles: Mapping[str, str]) -> None:
        self.merge = merge
        self.emit = emitter
        self.handles = handles

    def geometry(self, key: str) -> tuple[str, int]:
        """The edge of a geometry array, and its dtype."""
        array = self.merge.geometry[key]
        number = dtype_number(array.dtype)
        role = f"mask:{key}"
        if role in self.handles:
            return self.emit.read(self.handles[role], number, array.shape, f"{key}/read"), number
        return self.emit.const(array, key), number


def build_merge(plan: VariablePlan, paths: frozenset[Access]) -> Merge:
    """Chooses base, overlays, geometry and new variables for a variable with these access paths."""
    assert plan.shape is not None or plan.strategy is Strategy.STOP
    shape = plan.shape or ()
    overlays = _overlays(plan)
    base_trains = plan.strategy is Strategy.MASK or _trains_whole(plan)
    live = None
    if base_trains and overlays:
        covered = empty_region(shape)
        for overlay in overlays:
            covered = union(covered, overlay.region)
        live = live_rows(complement(covered))
    geometry: dict[str, NDArray[np.generic]] = {}
    for overlay in overlays:
        if overlay.region.is_whole:
            continue
        if paths - {Access.GATHER, Access.SHAPE} or plan.writes:
            geometry |= full_geometry(overlay.region, overlay.prefix)
        if Access.GATHER in paths:
            geometry |= gather_geometry(overlay.region, overlay.prefix, with_values=overlay.role is not None)
    if Access.GATHER in paths and live is not None and isinstance(live, np.ndarray):
        geometry["live/map"] = _row_map(live, shape[0])
    return Merge(
        plan=plan,
        dtype=DTYPE_NUMBERS[plan.dtype],
        shape=shape,
        base_trains=base_trains,
        overlays=overlays,
        geometry=geometry,
        variables=(*_storages(plan), *_masks(plan, geometry)),
        live=live,
    )


def _trains_whole(plan: VariablePlan) -> bool:
    """Whether some phase trains the whole of a variable that others hold."""
    return plan.strategy is Strategy.STOP and any(a.trainable for a in plan.atoms)


def _row_map(rows: NDArray[np.int64], size: int) -> NDArray[np.generic]:
    table = np.full(size, -1, np.int32)
    table[rows] = np.arange(len(rows), dtype=np.int32)
    return table


def _overlays(plan: VariablePlan) -> tuple[Overlay, ...]:
    found: list[Overlay] = []
    for n, atom in enumerate(plan.atoms):
        match atom.storage:
            case Storage.PART:
                found.append(Overlay(atom.region, f"part:{n}", atom.trainable, f"part{n}", atom.phases))
            case Storage.COPY:
                found.append(Overlay(atom.region, f"copy:{n}", False, f"copy{n}"))
            case Storage.BASE if plan.copy is Copy.LIVE and not atom.trainable:
                found.append(Overlay(atom.region, None, False, f"live{n}"))
    return tuple(found)


def _storages(plan: VariablePlan) -> tuple[NewVariable, ...]:
    roles = {Storage.PART: "part", Storage.COPY: "copy"}
    return tuple(
        NewVariable(
            role=f"{roles[atom.storage]}:{n}",
            name=atom.name or "",
            dtype=plan.dtype,
            shape=atom.region.storage_shape,
            trainable=atom.storage is Storage.PART,
            region=atom.region,
        )
        for n, atom in enumerate(plan.atoms)
        if atom.storage in roles
    )


def _masks(plan: VariablePlan, geometry: dict[str, NDArray[np.generic]]) -> tuple[NewVariable, ...]:
    stem = next((a.name for a in plan.atoms if a.name), f"{plan.name}/graphfreeze/x").rsplit("/", 1)[0]
    large = {key: array for key, array in geometry.items() if array.nbytes >= CONST_LIMIT}
    return tuple(
        NewVariable(
            role=f"mask:{key}",
            name=f"{stem}/mask" if n == 0 else f"{stem}/mask_{n}",
            dtype=dtype_name(dtype_number(array.dtype)),
            shape=array.shape,
            trainable=False,
            value=array,
        )
        for n, (key, array) in enumerate(large.items())
    )
