"""How a read is used: the access path, found by looking at who consumes the value.

A lookup must be merged after the gather (merging the table first turns its sparse gradient dense), and ``tf.gather`` on
a Keras variable is a full read followed by GatherV2, perhaps behind a Cast. So a ReadVariableOp is a *gather* read
where everything that uses its value is a gather on the first axis, and a *full* read otherwise: TensorFlow itself adds
up the gradient of a value with a dense user densely, so nothing is lost there.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from graphfreeze.graph.ops import Access
from graphfreeze.graph.refs import attr_of
from graphfreeze.graph.scope import Scope, Use
from graphfreeze.savedmodel import DTYPE_NUMBERS
from graphfreeze.savedmodel.protos import NodeDef

_SHAPE_OPS = frozenset({"Shape", "ShapeN", "Size", "Rank"})
_THROUGH = frozenset({"Identity", "Cast"})
_SHORT = DTYPE_NUMBERS["int16"]


@dataclass(frozen=True, slots=True)
class Lookup:
    """One gather from a variable. ``casts`` are Cast nodes between the variable and the gather, outermost first."""

    node: str
    op: str
    casts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadAccess:
    """How a read is merged: its lookups where ``path`` is GATHER, the uses of its value where it is FULL."""

    path: Access
    lookups: tuple[Lookup, ...] = ()
    uses: tuple[Use, ...] = ()
    declared: Access | None = None
    """The access that the op stands for, where it is merged by another path (gather_nd as a full read)."""

    @property
    def shown(self) -> Access:
        """The access path as reports name it."""
        return self.declared or self.path


def read_access(scope: Scope, node: NodeDef, declared: Access, captured: Set[str] = frozenset()) -> ReadAccess:
    """Classifies one reading node, whose op the table declares as ``declared``.

    ``captured`` are nodes whose value a gradient function takes over: a use that no edge of the scope shows.
    """
    if declared is Access.SHAPE:
        return ReadAccess(Access.SHAPE)
    if declared in (Access.GATHER, Access.GATHER_ND):
        if attr_of(node, "batch_dims").i == 0 and (declared is Access.GATHER or _takes_one_id(scope, node)):
            return ReadAccess(Access.GATHER, (Lookup(node.name, node.op),), declared=declared)
        return ReadAccess(Access.FULL, uses=scope.uses(scope.ref(node.name, node.op)), declared=declared)
    value = scope.ref(node.name, node.op)
    uses = tuple(u for u in scope.uses(value) if not _only_shape(scope, u, captured))
    if not uses and node.name not in captured:
        return ReadAccess(Access.SHAPE)
    lookups = () if node.name in captured else _lookups(scope, uses, (), captured)
    if lookups:
        return ReadAccess(Access.GATHER, lookups)
    return ReadAccess(Access.FULL, uses=uses)


def direct_access(scope: Scope, node: NodeDef, index: int) -> ReadAccess:
    """Classifies an op that takes a ref variable itself, without an op that reads it first."""
    if node.op in _SHAPE_OPS:
        return ReadAccess(Access.SHAPE)
    if index == 0 and _is_lookup(scope, node):
        return ReadAccess(Access.GATHER, (Lookup(node.name, node.op),))
    return ReadAccess(Access.FULL, uses=(Use(node.name, index),))


def _only_shape(scope: Scope, use: Use, captured: Set[str]) -> bool:
    if use.result is not None:
        return False
    node = scope.nodes[use.node]
    if node.op not in _THROUGH:
        return node.op in _SHAPE_OPS
    inner = scope.uses(scope.ref(node.name, node.op))
    return bool(inner) and node.name not in captured and all(_only_shape(scope, u, captured) for u in inner)


def _lookups(scope: Scope, uses: tuple[Use, ...], casts: tuple[str, ...], captured: Set[str]) -> tuple[Lookup, ...]:
    """The gathers behind a value, or () where anything else uses it too."""
    found: list[Lookup] = []
    for use in uses:
        if use.result is not None:
            return ()
        node = scope.nodes[use.node]
        if node.op in _SHAPE_OPS:
            continue
        if node.op in _THROUGH:
            inner = _lookups(
                scope,
                scope.uses(scope.ref(node.name, node.op)),
                (*casts, node.name) if node.op == "Cast" else casts,
                captured,
            )
            if not inner or node.name in captured:
                return ()
            found.extend(inner)
            continue
        if use.index != 0 or not _is_lookup(scope, node):
            return ()
        found.append(Lookup(node.name, node.op, casts))
    return tuple(found)


def _is_lookup(scope: Scope, node: NodeDef) -> bool:
    """A gather of whole rows by one id each. Other gathers have a dense gradient in TensorFlow anyway."""
    if attr_of(node, "Tindices").type == _SHORT:
        return False  # GatherV2 alone takes int16; the ops that a lookup is merged with do not
    if node.op == "GatherNd":
        return _takes_one_id(scope, node)
    return node.op == "Gather" or (
        node.op == "GatherV2" and attr_of(node, "batch_dims").i == 0 and constant_int(scope, node.input[2]) == 0
    )


def _takes_one_id(scope: Scope, node: NodeDef) -> bool:
    """Whether the indices of a gather_nd have a last axis of one."""
    shape = scope.static_shape(node.input[1])
    return shape is not None and len(shape) > 0 and shape[-1] == 1


def constant_int(scope: Scope, ref: str) -> int | None:
    """The value of a scalar integer Const, None for anything else."""
    node = scope.nodes.get(ref.split(":")[0])
    if node is None or node.op != "Const":
        return None
    tensor = node.attr["value"].tensor
    values = list(tensor.int_val) or list(tensor.int64_val)
    if values:
        return int(values[0])
    if tensor.tensor_content:
        return int.from_bytes(tensor.tensor_content, "little", signed=True)
    return 0
