"""Computes emitted nodes with numpy, so that a merge can be tried on thousands of regions without TensorFlow.

Run on labels instead of values, it also tells where every element of a result comes from and whether a gradient
reaches it: StopGradient adds a half to whole numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from graphfreeze.graph.attrs import tensor_value
from graphfreeze.graph.refs import attr_of, is_control, parse_ref
from graphfreeze.graph.scope import Scope
from graphfreeze.savedmodel import numpy_dtype
from graphfreeze.savedmodel.protos import NodeDef

Array = np.ndarray
_BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "LogicalAnd": np.logical_and,
    "GreaterEqual": np.greater_equal,
    "Less": np.less,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "Sub": np.subtract,
    "AddV2": np.add,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Minimum": np.minimum,
    "BitwiseAnd": np.bitwise_and,
}


@dataclass
class Evaluation:
    """Values of edges in one scope; ``variables`` are by argument name. ``looked_up`` are ids per variable or edge."""

    scope: Scope
    variables: Mapping[str, Array]
    values: dict[str, Array] = field(default_factory=dict)
    labels: bool = False
    looked_up: list[tuple[str, Array]] = field(default_factory=list)

    def value(self, edge: str) -> Array:
        """The value of an edge."""
        edge = self.scope.canonical(edge)
        if edge in self.variables:
            return self.variables[edge]
        if edge not in self.values:
            node = {n.name: n for n in self.scope.node_list}[parse_ref(edge, in_function=True).node]
            assert self.scope.ref(node.name, node.op) == edge, f"{edge} is not how the output of {node.op} is called"
            self.values[edge] = self._compute(node)
            self._check_dtype(node, self.values[edge])
        return self.values[edge]

    def _check_dtype(self, node: NodeDef, value: Array) -> None:
        for key in ("T", "dtype", "DstT", "Tparams"):
            if key in node.attr and node.op not in ("Where", "Shape", *_BINARY) and not self.labels:
                assert value.dtype == numpy_dtype(node.attr[key].type), f"{node.name}: {value.dtype}"

    def _compute(self, node: NodeDef) -> Array:
        inputs = [text for text in node.input if not is_control(text)]
        if node.op == "Const":
            return tensor_value(node.attr["value"].tensor)
        x, *rest = (self.value(text) for text in inputs)
        if node.op in ("ResourceGather", "GatherV2"):
            self.looked_up.append((inputs[0], rest[0]))
        if node.op in _BINARY:
            assert x.dtype == rest[0].dtype, node.name
            return np.asarray(_BINARY[node.op](x, rest[0]))
        return getattr(self, f"_{node.op}")(node, x, *rest)

    def _StopGradient(self, node: NodeDef, x: Array) -> Array:  # noqa: N802
        return np.floor(x) + 0.5 if self.labels else x

    def _ReadVariableOp(self, node: NodeDef, x: Array) -> Array:  # noqa: N802
        return x

    _Identity = _ReadVariableOp

    def _Cast(self, node: NodeDef, x: Array) -> Array:  # noqa: N802
        return x if self.labels and x.dtype == np.float64 else x.astype(numpy_dtype(node.attr["DstT"].type))

    def _Shape(self, node: NodeDef, x: Array) -> Array:  # noqa: N802
        return np.asarray(x.shape, np.int32)

    def _Reshape(self, node: NodeDef, x: Array, shape: Array) -> Array:  # noqa: N802
        # TensorFlow infers no dimension of an empty tensor; numpy refuses to.
        known = int(np.prod([d for d in shape if d != -1], dtype=np.int64))
        return x.reshape([x.size // known if d == -1 and known else max(d, 0) for d in shape.tolist()])

    def _Transpose(self, node: NodeDef, x: Array, order: Array) -> Array:  # noqa: N802
        return x.transpose(order)

    def _ExpandDims(self, node: NodeDef, x: Array, axis: Array) -> Array:  # noqa: N802
        return np.expand_dims(x, int(axis))

    def _ConcatV2(self, node: NodeDef, *parts: Array) -> Array:  # noqa: N802
        assert attr_of(node, "N").i == len(parts) - 1
        return np.concatenate(parts[:-1], int(parts[-1]))

    def _StridedSlice(self, node: NodeDef, x: Array, *bounds: Array) -> Array:  # noqa: N802
        return x[_slices(node, *bounds)]

    def _Slice(self, node: NodeDef, x: Array, begin: Array, extent: Array) -> Array:  # noqa: N802
        ends = [None if size == -1 else int(start + size) for start, size in zip(begin, extent, strict=True)]
        assert all(end is None or end <= size for end, size in zip(ends, x.shape, strict=True))
        return x[tuple(slice(int(start), end) for start, end in zip(begin, ends, strict=True))]

    def _Pad(self, node: NodeDef, x: Array, paddings: Array) -> Array:  # noqa: N802
        return np.pad(x, paddings)

    def _Range(self, node: NodeDef, start: Array, limit: Array, delta: Array) -> Array:  # noqa: N802
        return np.arange(start, limit, delta, np.int32)

    def _Sum(self, node: NodeDef, x: Array, axis: Array) -> Array:  # noqa: N802
        return x.sum(int(axis), dtype=x.dtype)

    def _SparseToDense(self, node: NodeDef, indices: Array, shape: Array, values: Array, fill: Array) -> Array:  # noqa: N802
        result = np.full(tuple(shape), fill, values.dtype)
        result[indices.reshape(-1)] = values
        return result

    def _TensorScatterUpdate(self, node: NodeDef, x: Array, indices: Array, values: Array) -> Array:  # noqa: N802
        assert indices.shape[-1] == 1
        assert values.shape == (len(indices), *x.shape[1:])
        result = x.copy()
        result[indices[:, 0]] = values
        return result

    def _GatherV2(self, node: NodeDef, x: Array, ids: Array, axis: Array) -> Array:  # noqa: N802
        return np.take(x, ids, int(axis))

    def _GatherNd(self, node: NodeDef, x: Array, indices: Array) -> Array:  # noqa: N802
        assert indices.shape[-1] == 1
        return x[indices[..., 0]]

    def _ResourceGather(self, node: NodeDef, x: Array, ids: Array) -> Array:  # noqa: N802
        return x[ids]

    def _Where(self, node: NodeDef, flags: Array) -> Array:  # noqa: N802
        return np.argwhere(flags).astype(np.int64)

    def _SelectV2(self, node: NodeDef, flags: Array, x: Array, y: Array) -> Array:  # noqa: N802
        return np.where(flags, x, y)

    def _Cumsum(self, node: NodeDef, x: Array, axis: Array) -> Array:  # noqa: N802
        total = np.cumsum(x, int(axis), dtype=x.dtype)
        return np.asarray(total - x if node.attr["exclusive"].b else total)


def _slices(node: NodeDef, begin: Array, end: Array, strides: Array) -> tuple[slice, ...]:
    assert node.attr["begin_mask"].i == node.attr["shrink_axis_mask"].i == 0
    open_ends = node.attr["end_mask"].i
    return tuple(
        slice(int(b), None if open_ends >> i & 1 else int(e), int(s))
        for i, (b, e, s) in enumerate(zip(begin, end, strides, strict=True))
    )
