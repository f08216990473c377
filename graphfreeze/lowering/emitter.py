"""Adds nodes to a graph or function: one typed constructor per op that graphfreeze emits, and no others.

Every node gets a name under its anchor (``ANCHOR/graphfreeze/...``) and a mark that survives saving and loading, by
which ``finalize`` finds it again. The dozen ops here all have registered gradients and kernels for every dtype that a
trainable variable may have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from graphfreeze.graph.attrs import ADDED, bool_attr, bytes_attr, int_attr, shapes_attr, tensor_attr, type_attr
from graphfreeze.graph.names import FreshNames
from graphfreeze.graph.refs import is_control
from graphfreeze.graph.scope import Scope
from graphfreeze.savedmodel import DTYPE_NUMBERS, dtype_number
from graphfreeze.savedmodel.dtypes import NUMPY_DTYPES
from graphfreeze.savedmodel.protos import AttrValue, NodeDef

INT32 = DTYPE_NUMBERS["int32"]
INT64 = DTYPE_NUMBERS["int64"]
BOOL = DTYPE_NUMBERS["bool"]
UINT8 = DTYPE_NUMBERS["uint8"]
_OF_REFS = {
    "AssignVariableOp": "Assign",
    "ResourceScatterUpdate": "ScatterUpdate",
    "ResourceScatterNdUpdate": "ScatterNdUpdate",
    "ResourceStridedSliceAssign": "StridedSliceAssign",
}
"""Op that writes a resource variable -> its counterpart for a ref variable."""
NUMPY_INTS = {INT32: np.int32, INT64: np.int64}


class Emitter:
    """Appends nodes to one scope. Methods return the edge of the new node's output."""

    def __init__(self, scope: Scope, names: FreshNames, anchor: str, controls: Sequence[str] = ()) -> None:
        self.scope = scope
        self.anchor = anchor
        self.controls = tuple(controls)
        self._names = names
        self._consts: dict[tuple[object, ...], str] = {}

    def op(self, op: str, inputs: Sequence[str], attrs: Mapping[str, AttrValue], name: str | None = None) -> str:
        """One node of any kind."""
        full = self._names.fresh(f"{self.anchor}/graphfreeze/{name or op}")
        node = self.scope.node_list.add(name=full, op=op, input=list(inputs))
        for key, value in attrs.items():
            node.attr[key].CopyFrom(value)
        node.attr[ADDED].CopyFrom(bytes_attr(name or ""))
        return self.scope.ref(full, op)

    def node_of(self, ref: str) -> NodeDef:
        """The node that an edge of this emitter's comes from."""
        name = ref.split(":", 1)[0]
        return next(n for n in reversed(self.scope.node_list) if n.name == name)

    def const(self, array: NDArray[np.generic], name: str | None = None) -> str:
        """A constant, one node for all equal ones. It takes no control edge, in a while body too: no frames there."""
        key = (name, array.dtype, array.shape, array.tobytes())
        if key not in self._consts:
            attrs = {"dtype": type_attr(dtype_number(array.dtype)), "value": tensor_attr(array)}
            self._consts[key] = self.op("Const", [], attrs, name)
        return self._consts[key]

    def ints(self, values: Sequence[int] | int, dtype: int = INT32) -> str:
        """A constant integer scalar or vector."""
        return self.const(np.asarray(values, NUMPY_INTS[dtype]))

    def read(self, handle: str, dtype: int, shape: Sequence[int] | None, name: str | None = None) -> str:
        """ReadVariableOp, ordered after what the anchor was ordered after.

        The shape is noted: TensorFlow infers shapes of a loaded function before it knows what its handles hold.
        """
        attrs = {"dtype": type_attr(dtype)}
        if shape is not None:
            attrs["_output_shapes"] = shapes_attr([shape])
        return self.op("ReadVariableOp", [handle, *self.controls], attrs, name)

    def stop_gradient(self, x: str, dtype: int) -> str:
        """StopGradient."""
        return self.op("StopGradient", [x], {"T": type_attr(dtype)})

    def identity(self, x: str, dtype: int, name: str | None = None) -> str:
        """Identity."""
        return self.op("Identity", [x], {"T": type_attr(dtype)}, name)

    def cast(self, x: str, source: int, target: int, truncate: bool = False) -> str:
        """Cast."""
        attrs = {"SrcT": type_attr(source), "DstT": type_attr(target), "Truncate": bool_attr(truncate)}
        return self.op("Cast", [x], attrs)

    def shape(self, x: str, dtype: int) -> str:
        """Shape, as int32."""
        return self.op("Shape", [x], {"T": type_attr(dtype), "out_type": type_attr(INT32)})

    def reshape(self, x: str, dtype: int, shape: Sequence[int] | str) -> str:
        """Reshape to a static shape or to a shape tensor."""
        target = shape if isinstance(shape, str) else self.ints(list(shape))
        return self.op("Reshape", [x, target], {"T": type_attr(dtype), "Tshape": type_attr(INT32)})

    def transpose(self, x: str, dtype: int, permutation: Sequence[int]) -> str:
        """Transpose."""
        attrs = {"T": type_attr(dtype), "Tperm": type_attr(INT32)}
        return self.op("Transpose", [x, self.ints(list(permutation))], attrs)

    def expand_dims(self, x: str, dtype: int, axis: int) -> str:
        """ExpandDims."""
        attrs = {"T": type_attr(dtype), "Tdim": type_attr(INT32)}
        return self.op("ExpandDims", [x, self.ints(axis)], attrs)

    def concat(self, parts: Sequence[str], dtype: int, axis: int) -> str:
        """ConcatV2."""
        attrs = {"N": int_attr(len(parts)), "T": type_attr(dtype), "Tidx": type_attr(INT32)}
        return self.op("ConcatV2", [*parts, self.ints(axis)], attrs)

    def strided_slice(self, x: str, dtype: int, slices: Sequence[slice]) -> str:
        """StridedSlice by full slices; one that runs to the end of its axis may have ``stop`` None."""
        bounds, attrs = self.slice_bounds(slices, dtype)
        return self.op("StridedSlice", [x, *bounds], attrs)

    def slice_bounds(self, slices: Sequence[slice], dtype: int) -> tuple[list[str], dict[str, AttrValue]]:
        """The inputs (begin, end, strides) and attributes of an op of the StridedSlice family."""
        open_ends = sum(1 << i for i, s in enumerate(slices) if s.stop is None)
        masks = {"begin_mask": 0, "end_mask": open_ends, "ellipsis_mask": 0, "new_axis_mask": 0, "shrink_axis_mask": 0}
        bounds = [
            self.ints([s.start or 0 for s in slices]),
            self.ints([s.stop or 0 for s in slices]),
            self.ints([s.step or 1 for s in slices]),
        ]
        return bounds, {"T": type_attr(dtype), "Index": type_attr(INT32), **{k: int_attr(v) for k, v in masks.items()}}

    def contiguous_slice(self, x: str, dtype: int, begin: Sequence[int], extent: Sequence[int]) -> str:
        """Slice; an extent of -1 runs to the end. Its gradient is a Pad, many times as fast as StridedSlice's."""
        inputs = [x, self.ints(list(begin)), self.ints(list(extent))]
        return self.op("Slice", inputs, {"T": type_attr(dtype), "Index": type_attr(INT32)})

    def pad(self, x: str, dtype: int, paddings: NDArray[np.int32]) -> str:
        """Pad with zeros; ``paddings`` has a row (before, after) per axis."""
        return self.op("Pad", [x, self.const(paddings)], {"T": type_attr(dtype), "Tpaddings": type_attr(INT32)})

    def range(self, size: int) -> str:
        """Range from 0, as int32."""
        return self.arithmetic(0, size, 1)

    def arithmetic(self, start: int, stop: int, step: int) -> str:
        """Range with a start and a step, as int32."""
        return self.op("Range", [self.ints(start), self.ints(stop), self.ints(step)], {"Tidx": type_attr(INT32)})

    def scatter_update(self, x: str, indices: str, values: str, dtype: int, index_dtype: int) -> str:
        """TensorScatterUpdate: ``x`` with the slices at ``indices`` (shape (k, depth)) replaced."""
        attrs = {"T": type_attr(dtype), "Tindices": type_attr(index_dtype)}
        return self.op("TensorScatterUpdate", [x, indices, values], attrs)

    def sparse_to_dense(self, indices: str, values: str, size: int, dtype: int, index_dtype: int) -> str:
        """SparseToDense: a vector with the values (or the one value) at the indices and zeros elsewhere."""
        zero = self.const(np.zeros((), NUMPY_DTYPES[dtype]))
        attrs = {"T": type_attr(dtype), "Tindices": type_attr(index_dtype), "validate_indices": bool_attr(False)}
        return self.op("SparseToDense", [indices, self.ints([size], index_dtype), values, zero], attrs)

    def gather(self, x: str, ids: str, dtype: int, index_dtype: int, axis: int = 0, batch_dims: int = 0) -> str:
        """GatherV2."""
        attrs = {
            "Tparams": type_attr(dtype),
            "Tindices": type_attr(index_dtype),
            "Taxis": type_attr(INT32),
            "batch_dims": int_attr(batch_dims),
        }
        return self.op("GatherV2", [x, ids, self.ints(axis)], attrs)

    def gather_nd(self, x: str, indices: str, dtype: int, index_dtype: int) -> str:
        """GatherNd."""
        attrs = {"Tparams": type_attr(dtype), "Tindices": type_attr(index_dtype)}
        return self.op("GatherNd", [x, indices], attrs)

    def resource_gather(self, handle: str, ids: str, dtype: int, index_dtype: int) -> str:
        """ResourceGather, ordered after what the anchor was ordered after."""
        attrs = {
            "dtype": type_attr(dtype),
            "Tindices": type_attr(index_dtype),
            "batch_dims": int_attr(0),
            "validate_indices": bool_attr(True),
        }
        return self.op("ResourceGather", [handle, ids, *self.controls], attrs)

    def resource_gather_nd(self, handle: str, points: str, dtype: int, index_dtype: int) -> str:
        """ResourceGatherNd, ordered after what the anchor was ordered after."""
        attrs = {"dtype": type_attr(dtype), "Tindices": type_attr(index_dtype)}
        return self.op("ResourceGatherNd", [handle, points, *self.controls], attrs)

    def copy(self, handle: str, dtype: int, shape: Sequence[int] | None) -> str:
        """The value of now, whatever is written later; ordered after what the anchor was ordered after."""
        return self.read(handle, dtype, shape)

    def read_after(self, handle: str, dtype: int, control: str) -> str:
        """The value once ``control`` has run."""
        return self.op("ReadVariableOp", [handle, control], {"dtype": type_attr(dtype)})

    def write(
        self,
        op: str,
        handle: str,
        inputs: Sequence[str],
        dtype: int = 0,
        index_dtype: int | None = None,
        attrs: Mapping[str, AttrValue] | None = None,
    ) -> str:
        """An op that writes a resource variable. ``attrs`` where it has others than dtypes."""
        if attrs is None:
            named = {
                "ResourceScatterNdUpdate": {"T": type_attr(dtype), "use_locking": bool_attr(True)},
                "AssignVariableOp": {"dtype": type_attr(dtype), "validate_shape": bool_attr(False)},
            }
            indexed = {} if index_dtype is None else {"Tindices": type_attr(index_dtype)}
            attrs = named.get(op, {"dtype": type_attr(dtype)}) | indexed
        return self.op(op, [handle, *inputs], attrs)

    def broadcast(self, x: str, shape: Sequence[int], dtype: int) -> str:
        """BroadcastTo a static shape."""
        attrs = {"T": type_attr(dtype), "Tidx": type_attr(INT32)}
        return self.op("BroadcastTo", [x, self.ints(list(shape))], attrs)

    def where(self, flags: str) -> str:
        """Where: int64 positions of the true flags, shape (count, rank)."""
        return self.op("Where", [flags], {"T": type_attr(BOOL)})

    def select(self, flags: str, x: str, y: str, dtype: int) -> str:
        """SelectV2."""
        return self.op("SelectV2", [flags, x, y], {"T": type_attr(dtype)})

    def binary(self, op: str, x: str, y: str, dtype: int | None) -> str:
        """An element-wise op of two inputs of one dtype; ``dtype`` None for logic."""
        return self.op(op, [x, y], {} if dtype is None else {"T": type_attr(dtype)})

    def sum(self, x: str, axis: int) -> str:
        """Sum of int32 over one axis."""
        attrs = {"T": type_attr(INT32), "Tidx": type_attr(INT32), "keep_dims": bool_attr(False)}
        return self.op("Sum", [x, self.ints(axis)], attrs)

    def cumsum(self, x: str, axis: int) -> str:
        """Exclusive Cumsum of int32."""
        attrs = {
            "T": type_attr(INT32),
            "Tidx": type_attr(INT32),
            "exclusive": bool_attr(True),
            "reverse": bool_attr(False),
        }
        return self.op("Cumsum", [x, self.ints(axis)], attrs)


class GraphEmitter(Emitter):
    """Emits into a TF1 main graph, where a variable may be a ref, geometry is a constant, and nodes stand in frames."""

    def __init__(
        self,
        scope: Scope,
        names: FreshNames,
        anchor: str,
        controls: Sequence[str] = (),
        *,
        values: Collection[str] = (),
        frame: str | None = None,
    ) -> None:
        """``values`` are edges that are values or refs, not resource handles; ``frame`` a node of the frame, if any."""
        super().__init__(scope, names, anchor, controls)
        self._values = values
        self._frame = frame
        self.first = len(scope.node_list)

    @property
    def added(self) -> list[str]:
        """Names of the nodes that were added since this emitter was made."""
        return [n.name for n in self.scope.node_list[self.first :]]

    def op(self, op: str, inputs: Sequence[str], attrs: Mapping[str, AttrValue], name: str | None = None) -> str:
        """One node of any kind; one without inputs is tied to the frame, or it would run outside of it."""
        tied = [f"^{self._frame}"] if not inputs and self._frame is not None else []
        return super().op(op, [*inputs, *tied], attrs, name)

    def read(self, handle: str, dtype: int, shape: Sequence[int] | None, name: str | None = None) -> str:
        """The value behind a handle, ordered after what the anchor was ordered after."""
        if handle not in self._values:
            return super().read(handle, dtype, shape, name)
        return super().op("Identity", [handle, *self.controls], {"T": type_attr(dtype)}, name)

    def resource_gather(self, handle: str, ids: str, dtype: int, index_dtype: int) -> str:
        """A lookup in a variable; of a ref it is GatherV2, which copies."""
        if handle not in self._values:
            return super().resource_gather(handle, ids, dtype, index_dtype)
        attrs = {
            "Tparams": type_attr(dtype),
            "Tindices": type_attr(index_dtype),
            "Taxis": type_attr(INT32),
            "batch_dims": int_attr(0),
        }
        return self.op("GatherV2", [handle, ids, self.ints(0), *self.controls], attrs)

    def resource_gather_nd(self, handle: str, points: str, dtype: int, index_dtype: int) -> str:
        """Single elements of a variable."""
        if handle not in self._values:
            return super().resource_gather_nd(handle, points, dtype, index_dtype)
        attrs = {"Tparams": type_attr(dtype), "Tindices": type_attr(index_dtype)}
        return self.op("GatherNd", [handle, points, *self.controls], attrs)

    def copy(self, handle: str, dtype: int, shape: Sequence[int] | None) -> str:
        """The value of now: an Identity of a ref shares the memory of the variable."""
        if handle not in self._values:
            return super().copy(handle, dtype, shape)
        return self.op("DeepCopy", [handle, *self.controls], {"T": type_attr(dtype)})

    def read_after(self, handle: str, dtype: int, control: str) -> str:
        """The value once ``control`` has run."""
        if handle not in self._values:
            return super().read_after(handle, dtype, control)
        return self.op("Identity", [handle, control], {"T": type_attr(dtype)})

    def write(
        self,
        op: str,
        handle: str,
        inputs: Sequence[str],
        dtype: int = 0,
        index_dtype: int | None = None,
        attrs: Mapping[str, AttrValue] | None = None,
    ) -> str:
        """An op that writes a variable, or its counterpart for a ref."""
        if handle not in self._values:
            return super().write(op, handle, inputs, dtype, index_dtype, attrs)
        if attrs is None:
            shaped = {"validate_shape": bool_attr(False)} if op == "AssignVariableOp" else {}
            indexed = {} if index_dtype is None else {"Tindices": type_attr(index_dtype)}
            attrs = {"T": type_attr(dtype), "use_locking": bool_attr(True), **shaped, **indexed}
        return self.op(_OF_REFS[op], [handle, *inputs], attrs)


def control_inputs(node: NodeDef) -> list[str]:
    """The control edges of a node."""
    return [text for text in node.input if is_control(text)]
