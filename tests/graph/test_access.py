"""How a read is classified by those who use its value."""

import pytest

from graphfreeze.graph.access import Lookup, constant_int, read_access
from graphfreeze.graph.ops import Access
from graphfreeze.savedmodel.protos import AttrValue, TensorProto
from tests.graph.protos import FLOAT, INT32, dtype, int_const, node, scope, shapes

READ = node("read", "ReadVariableOp", "v")


def gather(name, value, axis="axis:output:0", **attrs):
    return node(name, "GatherV2", value, "ids:output:0", axis, **attrs)


def ids(*shape):
    return node("ids", "Const", _output_shapes=shapes(shape))


def access(*nodes, declared=Access.FULL, captured=frozenset(), results=None):
    made = scope(*nodes, results=results)
    return read_access(made, made.nodes["read"], declared, captured)


def test_a_gather_on_axis_zero_is_a_lookup():
    found = access(READ, ids(3), int_const("axis", 0), gather("g", "read:value:0"))
    assert found.path is found.shown is Access.GATHER
    assert found.lookups == (Lookup("g", "GatherV2"),)


def test_a_gather_behind_cast_and_identity_is_a_lookup():
    found = access(
        READ,
        node("same", "Identity", "read:value:0"),
        node("half", "Cast", "same:output:0"),
        node("back", "Cast", "half:y:0"),
        ids(3),
        int_const("axis", 0),
        gather("g", "back:y:0"),
        gather("direct", "same:output:0"),
    )
    assert found.path is Access.GATHER
    assert set(found.lookups) == {Lookup("g", "GatherV2", ("half", "back")), Lookup("direct", "GatherV2")}


def test_old_gather_is_a_lookup():
    found = access(READ, ids(3), node("g", "Gather", "read:value:0", "ids:output:0"))
    assert found.lookups == (Lookup("g", "Gather"),)


@pytest.mark.parametrize("depth", [1, 2])
def test_gather_nd_is_a_lookup_only_where_it_takes_one_id(depth):
    found = access(READ, ids(3, depth), node("g", "GatherNd", "read:value:0", "ids:output:0"))
    assert found.path is (Access.GATHER if depth == 1 else Access.FULL)


@pytest.mark.parametrize(
    ("more", "attrs"),
    [
        ([int_const("axis", 1)], {}),
        ([int_const("axis", -1)], {}),
        ([int_const("axis", 0)], {"batch_dims": 1}),
        ([node("axis", "Placeholder")], {}),
    ],
    ids=["axis 1", "axis -1", "batch_dims", "axis unknown"],
)
def test_other_gathers_are_full_reads(more, attrs):
    found = access(READ, ids(3), *more, gather("g", "read:value:0", **attrs))
    assert (found.path, found.lookups) == (Access.FULL, ())
    assert [use.node for use in found.uses] == ["g"]


def test_a_value_that_serves_as_ids_is_a_full_read():
    found = access(READ, int_const("axis", 0), node("g", "GatherV2", "x", "read:value:0", "axis:output:0"))
    assert found.path is Access.FULL


@pytest.mark.parametrize(
    "dense", [node("dense", "MatMul", "x", "read:value:0"), node("dense", "Identity", "read:value:0")]
)
def test_a_lookup_beside_a_dense_use_is_a_full_read(dense):
    found = access(
        READ,
        ids(3),
        int_const("axis", 0),
        gather("g", "read:value:0"),
        dense,
        results={"y": (FLOAT, "dense:output:0")},
    )
    assert found.path is Access.FULL
    assert {use.node for use in found.uses} == {"g", "dense"}


def test_a_value_that_is_returned_is_a_full_read():
    found = access(READ, results={"y": (FLOAT, "read:value:0")})
    assert found.path is Access.FULL
    assert [use.result for use in found.uses] == ["y"]


@pytest.mark.parametrize("op", ["Shape", "ShapeN", "Size", "Rank"])
def test_a_value_that_gives_its_shape_only(op):
    assert access(READ, node("s", op, "read:value:0")).path is Access.SHAPE
    assert access(READ, node("i", "Identity", "read:value:0"), node("s", op, "i:output:0")).path is Access.SHAPE


def test_a_value_that_nobody_uses():
    assert access(READ).path is Access.SHAPE
    # An Identity that nothing takes may be fetched or captured.
    assert access(READ, node("i", "Identity", "read:value:0")).path is Access.FULL


def test_shapes_beside_other_uses_are_left_alone():
    product = node("m", "MatMul", "x", "read:value:0")
    found = access(READ, node("s", "Shape", "read:value:0"), product)
    assert found.path is Access.FULL
    assert [use.node for use in found.uses] == ["m"]
    looked_up = access(
        READ, node("s", "Shape", "read:value:0"), ids(3), int_const("axis", 0), gather("g", "read:value:0")
    )
    assert looked_up.lookups == (Lookup("g", "GatherV2"),)


@pytest.mark.parametrize("captured", ["read", "i"])
def test_what_a_gradient_function_captures_is_a_full_read(captured):
    nodes = [
        READ,
        node("i", "Identity", "read:value:0"),
        node("s", "Shape", "i:output:0"),
        ids(3),
        int_const("axis", 0),
        gather("g", "i:output:0"),
    ]
    assert access(*nodes).path is Access.GATHER
    assert access(*nodes, captured={captured}).path is Access.FULL
    assert access(*nodes[:3], captured={captured}).path is Access.FULL
    assert access(READ, captured={"read"}).path is Access.FULL


@pytest.mark.parametrize(
    ("op", "declared", "attrs", "path"),
    [
        ("ResourceGather", Access.GATHER, {}, Access.GATHER),
        ("ResourceGather", Access.GATHER, {"batch_dims": 1}, Access.FULL),
        ("ResourceGatherNd", Access.GATHER_ND, {"_ids": shapes((3, 1))}, Access.GATHER),
        ("ResourceGatherNd", Access.GATHER_ND, {"_ids": shapes((3, 2))}, Access.FULL),
        ("ResourceGatherNd", Access.GATHER_ND, {"_ids": AttrValue()}, Access.FULL),
        ("VariableShape", Access.SHAPE, {}, Access.SHAPE),
    ],
)
def test_ops_that_read_by_themselves(op, declared, attrs, path):
    noted = attrs.pop("_ids", shapes((3,)))
    found = access(
        node("ids", "Const", _output_shapes=noted),
        node("read", op, "v", "ids:output:0", **attrs),
        node("m", "Neg", "read:output:0"),
        declared=declared,
    )
    assert (found.path, found.shown) == (path, declared)
    if path is Access.FULL:
        assert [use.node for use in found.uses] == ["m"]


def test_constants_in_every_form():
    content = node("c", "Const", value=AttrValue(tensor=TensorProto(dtype=INT32, tensor_content=b"\xff\xff\xff\xff")))
    made = scope(int_const("a", 3), content, node("z", "Const", dtype=dtype(INT32)), node("p", "Placeholder"))
    assert [constant_int(made, f"{n}:output:0") for n in ("a", "c", "z", "p", "missing")] == [3, -1, 0, None, None]
