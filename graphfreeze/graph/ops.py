"""What TensorFlow's ops do with a variable handle: the one table that says so.

An op that takes a handle and is in no table is an error, never a skip: that is how a reader is missed. The rows follow
the op registrations of TensorFlow 2.21 (core/ops/resource_variable_ops.cc, functional_ops.cc, dataset_ops.cc,
training_ops.cc). To teach graphfreeze a new reading op, add a row to ``READS``; a new op that calls functions, to
``CALLS``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Access(StrEnum):
    """The access path of a read."""

    FULL = "full"
    GATHER = "gather"
    GATHER_ND = "gather_nd"
    SHAPE = "shape"


class Use(StrEnum):
    """What an op does with a handle."""

    READ = "read"
    WRITE = "write"
    INERT = "inert"
    FORWARD = "forward"


class CallKind(StrEnum):
    """How often, and whether differentiably, an op runs the functions that it names."""

    CALL = "call"
    BRANCH = "branch"
    LOOP = "loop"
    DATA = "data"


@dataclass(frozen=True, slots=True)
class CallOp:
    """An op that runs functions, and how its inputs become their arguments."""

    kind: CallKind
    functions: tuple[str, ...]
    """Attributes that hold a function or a list of functions."""
    types: str
    """Attribute with the dtypes of the inputs that are passed on."""
    skip: int = 0
    """Inputs before those, of fixed number."""
    skip_types: str | None = None
    """Attribute whose length adds to ``skip``."""
    tail: bool = False
    """True where the inputs become the last arguments of the function (data ops), not the first."""


READS: dict[str, Access] = {
    "ReadVariableOp": Access.FULL,
    "ResourceGather": Access.GATHER,
    "ResourceGatherNd": Access.GATHER_ND,
    "VariableShape": Access.SHAPE,
}

INERT = frozenset({"VarIsInitializedOp", "DisableCopyOnRead", "DestroyResourceOp", "NoOp"})
"""Ops that take a handle and neither read nor change the value."""

FORWARDS = frozenset({"Identity"})
"""Ops whose output is the same handle."""

_WRITES = re.compile(
    r"Assign(Add|Sub)?VariableOp|AssignVariableXlaConcatND|Resource(Sparse)?Apply\w+|ResourceScatter\w+"
    r"|ResourceStridedSliceAssign|ResourceCountUpTo|RngSkip|RngReadAndSkip|Stateful(Random|Standard|Truncated|Uniform)\w*"
)

_DATA = {"kind": CallKind.DATA, "types": "Targuments", "skip": 1, "tail": True}


def _data(function: str = "f", **changes: object) -> CallOp:
    return CallOp(functions=(function,), **{**_DATA, **changes})  # type: ignore[arg-type]


CALLS: dict[str, CallOp] = {
    "PartitionedCall": CallOp(CallKind.CALL, ("f",), "Tin"),
    "StatefulPartitionedCall": CallOp(CallKind.CALL, ("f",), "Tin"),
    "If": CallOp(CallKind.BRANCH, ("then_branch", "else_branch"), "Tin", skip=1),
    "StatelessIf": CallOp(CallKind.BRANCH, ("then_branch", "else_branch"), "Tin", skip=1),
    "Case": CallOp(CallKind.BRANCH, ("branches",), "Tin", skip=1),
    "StatelessCase": CallOp(CallKind.BRANCH, ("branches",), "Tin", skip=1),
    "While": CallOp(CallKind.LOOP, ("cond", "body"), "T"),
    "StatelessWhile": CallOp(CallKind.LOOP, ("cond", "body"), "T"),
    "MapDefun": _data(types="Tcaptured", skip=0, skip_types="Targuments"),
    "ReduceDataset": _data(skip_types="Tstate"),
    "ScanDataset": _data(skip_types="Tstate"),
    "ExperimentalScanDataset": _data(skip_types="Tstate"),
    "MapDataset": _data(),
    "ParallelMapDataset": _data(),
    "ParallelMapDatasetV2": _data(),
    "MapAndBatchDataset": _data(),
    "FlatMapDataset": _data(),
    "InterleaveDataset": _data(),
    "ParallelInterleaveDataset": _data(),
    "ParallelInterleaveDatasetV2": _data(),
    "ParallelInterleaveDatasetV3": _data(),
    "ParallelInterleaveDatasetV4": _data(),
    "FilterDataset": _data("predicate"),
    "TakeWhileDataset": _data("predicate"),
}

_OUTPUTS = {
    "ReadVariableOp": "value",
    "Where": "index",
    "SparseToDense": "dense",
    "Cumsum": "out",
    "Cast": "y",
    "ZerosLike": "y",
    "Transpose": "y",
    "VarHandleOp": "resource",
    "RestoreV2": "tensors",
    "Rsqrt": "y",
    **dict.fromkeys(
        (
            *("LogicalAnd", "GreaterEqual", "Less", "Equal", "NotEqual", "Sub", "AddV2", "FloorDiv", "FloorMod"),
            *("Minimum", "Maximum", "BitwiseAnd", "Mul", "RsqrtGrad"),
        ),
        "z",
    ),
}


def output_name(op: str) -> str:
    """The name of the only output argument of an op, as a FunctionDef edge writes it; most say ``output``."""
    return _OUTPUTS.get(op, "output")


def use_of(op: str) -> Use | None:
    """What an op does with a handle that it takes; None where the table does not know the op."""
    if op in READS:
        return Use.READ
    if op in INERT:
        return Use.INERT
    if op in FORWARDS:
        return Use.FORWARD
    return Use.WRITE if _WRITES.fullmatch(op) else None
