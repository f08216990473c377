"""What a merge is made of, for every strategy; and the nodes of a few merges as text."""

import numpy as np
import pytest

from graphfreeze.graph.access import Lookup
from graphfreeze.graph.names import FreshNames
from graphfreeze.graph.ops import Access
from graphfreeze.lowering.emitter import Emitter, control_inputs
from graphfreeze.lowering.full import merge_full
from graphfreeze.lowering.lookup import merge_lookup
from graphfreeze.lowering.merge import CONST_LIMIT, MergeContext
from graphfreeze.savedmodel import dtype_name
from graphfreeze.selection import Copy, Strategy, box_region, mask_region, points_region, rows_region, whole_region
from graphfreeze.selection.axis import Span
from tests.graph.protos import FLOAT, INT32, RESOURCE, dtype, node, scope
from tests.lowering.test_facts import merge_of

FULL, GATHER = frozenset({Access.FULL}), frozenset({Access.GATHER})
BOTH = FULL | GATHER
SHAPE = (10, 8)
TOP = box_region(SHAPE, [slice(0, 5)])
LISTED = rows_region(SHAPE, 0, [0, 3, 4, 6])
COLUMNS = rows_region(SHAPE, 1, [0, 1, 3])
POINTS = points_region(SHAPE, [7, 20])
NOISE = mask_region(np.arange(80).reshape(SHAPE) % 3 == 0)


def shown(merge):
    """(base trains, overlays, new variables, keys of the geometry, live rows)."""
    return (
        merge.base_trains,
        [(o.role, o.trainable) for o in merge.overlays],
        [(v.role, v.shape, v.trainable) for v in merge.variables],
        sorted(merge.geometry),
        merge.live,
    )


def test_stop_has_no_storage():
    assert shown(merge_of(whole_region(SHAPE), FULL, Strategy.STOP)) == (False, [], [], [], None)


def test_strict_replaces_the_base():
    merge = merge_of(whole_region(SHAPE), FULL, Strategy.MASK)
    assert shown(merge) == (False, [("copy:0", False)], [("copy:0", SHAPE, False)], [], None)
    assert merge.replaces_base() is merge.overlays[0]


@pytest.mark.parametrize(
    ("region", "paths", "shape", "geometry"),
    [
        (TOP, BOTH, (5, 8), []),
        (LISTED, FULL, (6, 8), ["part1/indices"]),
        (LISTED, GATHER, (6, 8), ["part1/map"]),
        (LISTED, BOTH, (6, 8), ["part1/indices", "part1/map"]),
        (COLUMNS, BOTH, (10, 5), ["part1/flags", "part1/indices"]),
    ],
)
def test_split(region, paths, shape, geometry):
    merge = merge_of(region, paths, Strategy.SPLIT)
    assert shown(merge) == (False, [("part:1", True)], [("part:1", shape, True)], geometry, None)
    assert merge.replaces_base() is None
    assert merge.roles == ("part:1",)


@pytest.mark.parametrize(
    ("region", "paths", "shape", "geometry", "live"),
    [
        (TOP, FULL, (5, 8), [], Span(5, 10)),
        (LISTED, GATHER, (4, 8), ["copy1/map", "live/map"], np.array([1, 2, 5, 7, 8, 9])),
        (POINTS, FULL, (2,), ["copy1/indices"], None),
        (POINTS, GATHER, (2,), ["copy1/row_bits", "copy1/starts"], None),
        (NOISE, FULL, (27,), ["copy1/bits"], None),
        (NOISE, BOTH, (27,), ["copy1/bits", "copy1/starts"], None),
    ],
)
def test_mask(region, paths, shape, geometry, live):
    merge = merge_of(region, paths, Strategy.MASK)
    trains, overlays, variables, keys, rows = shown(merge)
    assert (trains, overlays, variables) == (True, [("copy:1", False)], [("copy:1", shape, False)])
    assert keys == geometry
    assert np.array_equal(rows, live) if isinstance(live, np.ndarray) else rows == live


def test_live_reads_the_base():
    merge = merge_of(POINTS, BOTH, Strategy.MASK, Copy.LIVE)
    trains, overlays, variables, keys, _ = shown(merge)
    assert (trains, overlays, variables) == (True, [(None, False)], [])
    assert keys == ["live1/indices", "live1/row_bits"]


def test_a_shape_read_needs_no_geometry():
    assert merge_of(NOISE, frozenset({Access.SHAPE}), Strategy.MASK).geometry == {}


def test_parts_and_copies_are_filled_from_the_base():
    (part,) = merge_of(TOP, FULL, Strategy.SPLIT).variables
    assert part.name == "w/graphfreeze/trainable"
    assert (part.dtype, part.value) == ("float32", None)
    assert part.region.take(np.arange(80).reshape(SHAPE)).tolist() == np.arange(40, 80).reshape(5, 8).tolist()


def test_geometry_is_a_variable_from_64_kib():
    assert CONST_LIMIT == 65_536
    for rows, is_variable in ((16_383, False), (16_384, True)):
        region = rows_region((40_000, 1), 0, [*range(rows - 1), 39_999])
        merge = merge_of(region, FULL, Strategy.MASK)
        stored = [v for v in merge.variables if v.role.startswith("mask:")]
        assert bool(stored) is is_variable
        for variable in stored:
            assert (variable.name, variable.role) == ("w/graphfreeze/mask", "mask:copy1/indices")
            assert (variable.dtype, variable.trainable) == ("int32", False)
            assert variable.value is merge.geometry["copy1/indices"]


def test_several_masks_are_numbered():
    region = rows_region((40_000, 1), 0, np.flatnonzero(np.arange(40_000) % 7 % 3 == 0))
    names = [v.name for v in merge_of(region, BOTH, Strategy.MASK).variables]
    assert names == [f"w/graphfreeze/{n}" for n in ("frozen", "mask", "mask_1", "mask_2")]


def test_masks_of_a_live_merge_go_by_the_variable():
    region = rows_region((40_000, 1), 0, np.flatnonzero(np.arange(40_000) % 7 % 3 == 0))
    names = [v.name for v in merge_of(region, FULL, Strategy.MASK, Copy.LIVE).variables]
    assert names == ["w/graphfreeze/mask"]


# --- nodes as text


def text(made, first):
    """One line a node: name = Op(inputs) {attributes that matter}."""
    lines = []
    for n in list(made.node_list)[first:]:
        if n.op == "Const":
            value = n.attr["value"].tensor
            array = np.frombuffer(value.tensor_content, dtype_name(value.dtype))
            lines.append(f"{n.name} = {array.tolist()}")
            continue
        lines.append(f"{n.name} = {n.op}({', '.join(n.input)})".replace("r/graphfreeze/", "."))
    return "\n".join(lines).replace("r/graphfreeze/", ".")


def emitted(merge, *nodes, lookup=None):
    made = scope(*nodes, arguments={"v": RESOURCE, "s": RESOURCE, "ids": INT32})
    emit = Emitter(made, FreshNames(n.name for n in nodes), "r", control_inputs(nodes[0]))
    context = MergeContext(merge, emit, {"base": "v", **dict.fromkeys(merge.roles, "s")})
    result = merge_lookup(context, made, lookup) if lookup else merge_full(context, "r:value:0")
    return f"{text(made, len(nodes))}\n-> {result}".replace("r/graphfreeze/", ".")


READ = node("r", "ReadVariableOp", "v", "^before", dtype=dtype(FLOAT))
LOOKUP = node("r", "ResourceGather", "v", "ids", "^before", dtype=dtype(FLOAT), Tindices=dtype(INT32))


def test_nodes_of_stop():
    assert emitted(merge_of(whole_region(SHAPE), FULL, Strategy.STOP), READ) == (
        ".StopGradient = StopGradient(r:value:0)\n-> .StopGradient:output:0"
    )
    assert emitted(
        merge_of(whole_region(SHAPE), GATHER, Strategy.STOP), LOOKUP, lookup=Lookup("r", "ResourceGather")
    ) == (".StopGradient = StopGradient(r:output:0)\n-> .StopGradient:output:0")


def test_nodes_of_a_split_slab():
    assert emitted(merge_of(TOP, FULL, Strategy.SPLIT), READ) == (
        """\
.StopGradient = StopGradient(r:value:0)
.part1/read = ReadVariableOp(s, ^before)
.Const = [0, 0]
.Const_1 = [5, 8]
.Slice = Slice(.StopGradient:output:0, .Const:output:0, .Const_1:output:0)
.Const_2 = [0]
.ConcatV2 = ConcatV2(.Slice:output:0, .part1/read:value:0, .Const_2:output:0)
-> .ConcatV2:output:0"""
    )


def test_nodes_of_masked_points():
    assert emitted(merge_of(POINTS, FULL, Strategy.MASK), READ) == (
        """\
.copy1/indices = [7, 20]
.Const = [True]
.Const_1 = [False]
.Const_2 = [80]
.SparseToDense = SparseToDense(.copy1/indices:output:0, .Const_2:output:0, .Const:output:0, .Const_1:output:0)
.Const_3 = [10, 8]
.Reshape = Reshape(.SparseToDense:dense:0, .Const_3:output:0)
.copy1/read = ReadVariableOp(s, ^before)
.Const_4 = [0.0]
.SparseToDense_1 = SparseToDense(.copy1/indices:output:0, .Const_2:output:0, .copy1/read:value:0, .Const_4:output:0)
.Reshape_1 = Reshape(.SparseToDense_1:dense:0, .Const_3:output:0)
.StopGradient = StopGradient(.Reshape_1:output:0)
.SelectV2 = SelectV2(.Reshape:output:0, .StopGradient:output:0, r:value:0)
-> .SelectV2:output:0"""
    )


def test_one_point_in_a_hundred_is_scattered_and_more_are_selected():
    for columns, last in ((100, "-> .Reshape_2:output:0"), (99, "-> .SelectV2:output:0")):
        points = points_region((2, columns), [3, columns + 5])
        assert emitted(merge_of(points, FULL, Strategy.MASK), READ).splitlines()[-1] == last


def test_nodes_of_a_split_lookup():
    assert emitted(merge_of(TOP, GATHER, Strategy.SPLIT), LOOKUP, lookup=Lookup("r", "ResourceGather")) == (
        """\
.Const = [-1]
.Reshape = Reshape(ids, .Const:output:0)
.StopGradient = StopGradient(r:output:0)
.Const_1 = [-1, 8]
.Reshape_1 = Reshape(.StopGradient:output:0, .Const_1:output:0)
.Const_2 = [5]
.GreaterEqual = GreaterEqual(.Reshape:output:0, .Const_2:output:0)
.Where = Where(.GreaterEqual:z:0)
.GatherNd = GatherNd(.Reshape:output:0, .Where:index:0)
.Sub = Sub(.GatherNd:output:0, .Const_2:output:0)
.ResourceGather = ResourceGather(s, .Sub:z:0, ^before)
.TensorScatterUpdate = TensorScatterUpdate(.Reshape_1:output:0, .Where:index:0, .ResourceGather:output:0)
.Shape = Shape(r:output:0)
.Reshape_2 = Reshape(.TensorScatterUpdate:output:0, .Shape:output:0)
-> .Reshape_2:output:0"""
    )


def test_no_merge_ends_in_a_transpose():
    """Grappler folds a Transpose into the MatMul that takes it, and the product is not the same bit for bit."""
    for strategy in (Strategy.SPLIT, Strategy.MASK):
        lines = emitted(merge_of(COLUMNS, FULL, strategy), READ).splitlines()
        assert lines[-1] == "-> .SelectV2:output:0"
        part = "part1" if strategy is Strategy.SPLIT else "copy1"
        assert lines[-2].startswith(f".SelectV2 = SelectV2(.{part}/flags:output:0, .Transpose_2:y:0, ")


def test_every_added_node_carries_a_mark():
    made = scope(READ, arguments={"v": RESOURCE, "s": RESOURCE})
    context = MergeContext(
        merge_of(NOISE, FULL, Strategy.MASK), Emitter(made, FreshNames(["r"]), "r"), {"base": "v", "copy:1": "s"}
    )
    merge_full(context, "r:value:0")
    added = list(made.node_list)[1:]
    assert added
    assert all("_graphfreeze" in n.attr for n in added)
    assert all(n.name.startswith("r/graphfreeze/") for n in added)
