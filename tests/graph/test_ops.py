import pytest

from graphfreeze.graph.ops import CALLS, FORWARDS, INERT, READS, Use, use_of


@pytest.mark.parametrize(
    ("op", "use"),
    [
        ("ReadVariableOp", Use.READ),
        ("ResourceGather", Use.READ),
        ("ResourceGatherNd", Use.READ),
        ("VariableShape", Use.READ),
        ("VarIsInitializedOp", Use.INERT),
        ("DisableCopyOnRead", Use.INERT),
        ("Identity", Use.FORWARD),
        ("AssignVariableOp", Use.WRITE),
        ("AssignAddVariableOp", Use.WRITE),
        ("AssignSubVariableOp", Use.WRITE),
        ("ResourceApplyAdamWithAmsgrad", Use.WRITE),
        ("ResourceSparseApplyMomentum", Use.WRITE),
        ("ResourceScatterNdUpdate", Use.WRITE),
        ("ResourceStridedSliceAssign", Use.WRITE),
        ("RngReadAndSkip", Use.WRITE),
        ("StatefulUniformInt", Use.WRITE),
        ("AssignVariableOpX", None),
        ("MyGather", None),
        ("Pack", None),
    ],
)
def test_what_an_op_does_with_a_handle(op, use):
    assert use_of(op) is use


def test_no_op_is_in_two_tables():
    tables = [*READS, *INERT, *FORWARDS, *CALLS]
    assert len(set(tables)) == len(tables)
