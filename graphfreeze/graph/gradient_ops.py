"""What ops do to the elements of a gradient: the tables by which its way from the tape to a write is followed."""

from __future__ import annotations

from graphfreeze.graph.refs import attr_of
from graphfreeze.savedmodel.protos import NodeDef

PARALLEL = frozenset({"IdentityN"})
"""Output i is input i."""

KEEPS_ZERO = frozenset(
    {
        *("Identity", "IdentityN", "Snapshot", "StopGradient", "PreventGradient", "CheckNumerics", "EnsureShape"),
        *("Cast", "Neg", "Abs", "Square", "Sqrt", "Sign", "Conj", "Real", "ComplexAbs"),
        *("Mul", "MulNoNan", "Div", "RealDiv", "DivNoNan", "Add", "AddV2", "Sub", "AddN", "AccumulateNV2"),
        *("Select", "SelectV2", "Maximum", "Minimum", "SquaredDifference", "Switch", "Merge"),
    }
)
"""Element-wise ops that give zero where all their inputs of full shape are zero."""

ELEMENTWISE = KEEPS_ZERO | {
    *("Rsqrt", "Reciprocal", "Inv", "Exp", "Expm1", "Log", "Log1p", "Tanh", "Sigmoid", "Erf", "Softsign"),
    *("Floor", "Ceil", "Round", "Rint", "Pow", "FloorDiv", "FloorMod", "Mod", "Xdivy", "Xlogy", "ClipByValue"),
    *("IsFinite", "IsInf", "IsNan", "LogicalNot", "LogicalAnd", "LogicalOr", "ZerosLike", "OnesLike"),
    *("Greater", "GreaterEqual", "Less", "LessEqual", "Equal", "NotEqual"),
}
DECIDES = {"Select": 0, "SelectV2": 0, "Switch": 1}
"""Op -> the input that decides which of the others counts, and is no part of the value."""
LOOP_ENDS = frozenset({"NextIteration", "RefNextIteration"})
"""What a loop of TF1 takes round with them is not followed."""

REDUCTIONS = frozenset({"L2Loss", "Sum", "Mean", "Prod", "Max", "Min", "All", "Any", "EuclideanNorm"})

SEGMENT_SUMS = frozenset({"UnsortedSegmentSum"})
"""Inputs: rows, the id of each, the number of ids. The gradient of a lookup is made dense, or summed by row, by it."""

UNIQUE = frozenset({"Unique", "UniqueV2"})

SHAPING = frozenset(
    {
        *("Reshape", "Squeeze", "ExpandDims", "Transpose", "Pack", "ConcatV2", "Concat"),
        *("Unpack", "Split", "SplitV", "Slice", "StridedSlice"),
    }
)
"""Ops that hand elements on, arranged otherwise."""

GIVEN = frozenset({"Const", "Placeholder", "PlaceholderWithDefault", "VarHandleOp", "VariableV2", "Variable"})
"""Ops whose output no gradient can be."""


def input_dtype(node: NodeDef, index: int) -> int:
    """The dtype number of data input ``index`` of a node that takes a gradient; 0 where the node does not say."""
    if node.op in PARALLEL:
        return int(attr_of(node, "T").list.type[index])
    for name in ("SrcT", "T", "dtype"):
        if name in node.attr:
            return int(attr_of(node, name).type)
    passed = next((name for name in ("Tin", "Tinputs") if name in node.attr), None)
    if passed is None:
        return 0
    types = attr_of(node, passed).list.type
    # An If takes its condition before what it passes on.
    return int(types[index - (1 if "then_branch" in node.attr or "branches" in node.attr else 0)])
