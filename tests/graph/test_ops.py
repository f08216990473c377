import re

import pytest

from graphfreeze.graph.ops import CALLS, FORWARDS, INERT, READS, Use, use_of
from graphfreeze.savedmodel import DT_RESOURCE


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


@pytest.mark.tf
def test_every_op_of_the_installed_tensorflow_that_updates_a_variable_is_a_write():
    """Names as TensorFlow gives them: what updates a variable has no output of its own, or is a random op."""
    from tensorflow.core.framework.op_def_pb2 import OpList
    from tensorflow.python.client import pywrap_tf_session as session

    ops = OpList.FromString(session.TF_GetBuffer(session.TF_GetAllOpList())).op
    takes = [op for op in ops if any(a.type == DT_RESOURCE for a in op.input_arg)]
    updates = [op.name for op in takes if re.match(r"Assign|Resource(Sparse)?Apply|Resource(Scatter|Strided)", op.name)]
    assert len(updates) > 45
    assert [name for name in updates if use_of(name) is not Use.WRITE] == []
    # Whoever updates a variable takes it first; slots follow.
    assert [op.name for op in takes if op.name in updates and op.input_arg[0].type != DT_RESOURCE] == []
