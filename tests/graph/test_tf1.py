"""The main graph of a TF1 model: what reads and writes a variable there, and what is neither."""

import re
import sys
from pathlib import Path

import pytest

from graphfreeze.graph.attrs import shape_attr
from graphfreeze.graph.tf1 import REF_CHOICES, REF_FORWARDS, REF_INERT, ref_inputs
from graphfreeze.graph.trace import trace_meta_graph
from graphfreeze.savedmodel import Draft, SavedModel, protos
from tests.graph.protos import FLOAT, RESOURCE, dtype, int_const, node


def variable(name, op="VariableV2"):
    return node(name, op, dtype=dtype(FLOAT), shape=shape_attr((4, 4)), shared_name="")


def trace(*nodes, trainable=("w",), initialisers=(), fetched=(), collections=None):
    meta = protos.MetaGraphDef()
    for name, members in (collections or {}).items():
        meta.collection_def[name].node_list.value.extend(members)
    meta.graph_def.node.extend(nodes)
    for name in trainable:
        described = protos.VariableDef(variable_name=f"{name}:0")
        meta.collection_def["trainable_variables"].bytes_list.value.append(described.SerializeToString())
    for name in initialisers:
        described = protos.VariableDef(variable_name="any:0", initializer_name=name)
        meta.collection_def["variables"].bytes_list.value.append(described.SerializeToString())
    for name in fetched:
        meta.signature_def["serving_default"].outputs[name].name = f"{name}:0"
    proto = protos.SavedModel(meta_graphs=[meta])
    return trace_meta_graph(Draft(SavedModel(Path("m"), proto, None, Path("m/saved_model.pb")), None), meta)


def found(traced, name="w"):
    index = next(v.index for v in traced.variables if v.name == name)
    reads = {r.node: r.access.path.value for _, r in traced.reads(index)}
    return reads, [w.node for _, w in traced.writes(index)], [u.node for _, u in traced.unknown(index)]


SETUP = (
    node("w/Assign", "Assign", "w", "zeros"),
    node("w/read", "Identity", "w", T=dtype(FLOAT)),
    node("save/RestoreV2", "RestoreV2", "file", "names", "slices"),
    node("save/Identity", "Identity", "save/RestoreV2:1"),
    node("save/Assign", "Assign", "w", "save/Identity"),
    node("save/SaveV2", "SaveV2", "file", "names", "slices", "w", "w/read"),
)


def test_what_sets_up_is_neither_read_nor_write():
    assert found(trace(variable("w"), *SETUP)) == ({}, [], [])


def test_an_initialiser_is_told_by_its_collection():
    assign = node("group/init_w", "Assign", "w", "zeros")
    assert found(trace(variable("w"), assign))[1] == ["group/init_w"]
    assert found(trace(variable("w"), assign, initialisers=["group/init_w"]))[1] == []


def test_a_ref_is_read_by_whatever_takes_it():
    use = node("product", "MatMul", "x", "w/read", T=dtype(FLOAT))
    direct = node("sum", "AddV2", "w", "x", T=dtype(FLOAT))
    shape = node("shape", "Shape", "w", T=dtype(FLOAT))
    reads, writes, unknown = found(trace(variable("w"), *SETUP, use, direct, shape))
    assert (reads, writes, unknown) == ({"w/read": "full", "sum": "full", "shape": "shape"}, [], [])


def test_the_saver_does_not_turn_a_lookup_into_a_full_read():
    lookup = [int_const("axis", 0), node("rows", "GatherV2", "w/read", "ids", "axis", Tparams=dtype(FLOAT))]
    assert found(trace(variable("w"), *SETUP, *lookup))[0] == {"w/read": "gather"}
    assert found(trace(variable("w"), node("rows", "Gather", "w", "ids")))[0] == {"rows": "gather"}


def test_a_value_that_a_signature_gives_out_is_read():
    assert found(trace(variable("w"), *SETUP, fetched=["w/read"]))[0] == {"w/read": "full"}


def test_an_optimizer_writes_the_variable_and_its_slots():
    names = ("w", "w/Adam", "w/Adam_1", "beta1_power")
    inputs = ("w", "w/Adam", "w/Adam_1", "beta1_power/read", "beta2", "rate", "b1", "b2", "e", "gradient")
    traced = trace(
        *(variable(name) for name in names),
        node("beta1_power/read", "Identity", "beta1_power"),
        node("train", "ApplyAdam", *inputs),
        node("train/Assign", "Assign", "beta1_power", "next"),
    )
    assert found(traced) == ({}, ["train"], [])
    assert found(traced, "w/Adam_1") == ({}, ["train"], [])
    assert found(traced, "beta1_power") == ({"beta1_power/read": "full"}, ["train/Assign"], [])
    assert [traced.kind(v) for v in traced.variables] == ["weight", "state", "state", "state"]


def test_a_moving_average_is_a_statistic():
    update = node("update", "AssignSub", "mean", "delta")
    traced = trace(
        variable("mean"), update, node("after", "Identity", "update", T=dtype(FLOAT)), trainable=(), fetched=["after"]
    )
    assert found(traced, "mean") == ({"after": "full"}, ["update"], [])
    assert traced.kind(traced.variables[0]) == "statistic"


@pytest.mark.parametrize(("op", "count"), [("Assign", 1), ("ScatterNdUpdate", 1), ("ApplyGradientDescent", 1)])
def test_ref_inputs_of_plain_updates(op, count):
    assert ref_inputs(op) == count


@pytest.mark.parametrize(
    ("op", "count"),
    [
        ("ApplyMomentum", 2),
        ("SparseApplyAdagrad", 2),
        ("SparseApplyFtrl", 3),
        ("ApplyCenteredRMSProp", 4),
        ("MatMul", 0),
    ],
)
def test_ref_inputs_of_optimizers(op, count):
    assert ref_inputs(op) == count


@pytest.mark.tf
def test_every_op_of_the_installed_tensorflow_that_takes_a_ref_is_known():
    """Ref inputs say what an op changes: those that change a variable, hand it on, or only ask about it."""
    from tensorflow.core.framework.op_def_pb2 import OpList
    from tensorflow.python.client import pywrap_tf_session as session

    taking = {}
    for op in OpList.FromString(session.TF_GetBuffer(session.TF_GetAllOpList())).op:
        refs = [a for a in op.input_arg if a.is_ref]
        # Queues, tables and the like are refs of strings; the names of test ops begin with Ref or Two.
        if (
            refs
            and (refs[0].type_attr or refs[0].type == FLOAT)
            and not re.match(r"Ref(In|Input\w+)|TwoRefsIn", op.name)
        ):
            taking[op.name] = sys.maxsize if refs[0].number_attr else len(refs)
    choices = {name: taking.pop(name) for name in REF_CHOICES}
    assert len(choices) == 2
    known = {*REF_FORWARDS, *REF_INERT, "DestroyTemporaryVariable"}
    assert known <= taking.keys()
    writes = {name: count for name, count in taking.items() if name not in known}
    assert {name: ref_inputs(name) for name in writes} == writes
    assert len(writes) > 45


def test_what_runs_when_a_model_is_loaded_initialises():
    assign = node("set", "Assign", "w", "zeros")
    group = node("init", "NoOp", "^set")
    assert found(trace(variable("w"), assign, group))[1] == ["set"]
    for name in ("saved_model_main_op", "legacy_init_op", "local_init_op"):
        assert found(trace(variable("w"), assign, group, collections={name: ["init"]}))[1] == []
    assert found(trace(variable("w"), assign, group, collections={"train_op": ["init"]}))[1] == ["set"]


def test_writes_of_one_variable_may_run_at_once():
    writes = trace(variable("w"), node("a", "AssignAdd", "w", "x"), node("b", "AssignSub", "w", "y")).main.writes
    assert [(w.node, w.shared) for w in writes] == [("a", True), ("b", True)]
    (alone,) = trace(variable("w"), node("a", "AssignAdd", "w", "x")).main.writes
    assert not alone.shared
    enter = node("enter", "RefEnter", "w", T=dtype(FLOAT))
    (in_loop,) = trace(variable("w"), enter, node("a", "AssignAdd", "enter", "x")).main.writes
    assert in_loop.shared


def test_one_of_several_refs_cannot_be_followed():
    for choice in (node("one", "RefMerge", "w", "v"), node("one", "RefSelect", "i", "w", "v")):
        traced = trace(variable("w"), variable("v"), choice, node("a", "AssignAdd", "one", "x"))
        assert (found(traced)[2], found(traced, "v")[2]) == (["one"], ["one"])
    same = trace(variable("w"), node("one", "RefMerge", "w", "w"), node("a", "AssignAdd", "one", "x"))
    assert found(same) == ({}, ["a"], [])


def test_slots_that_are_written_op_by_op_are_state():
    """Sparse Adam of TF1: moments are assigned, and the variable is updated from what the assignments give out."""
    traced = trace(
        *(variable(name) for name in ("w", "w/m", "mean")),
        node("m/read", "Identity", "w/m", T=dtype(FLOAT)),
        node("decayed", "Mul", "m/read", "beta", T=dtype(FLOAT)),
        node("m", "Assign", "w/m", "decayed"),
        node("scatter", "ScatterAdd", "m", "ids", "rows"),
        node("step", "Mul", "scatter", "rate", T=dtype(FLOAT)),
        node("update", "AssignSub", "w", "step"),
        node("average", "AssignSub", "mean", "delta"),
    )
    assert [traced.kind(v) for v in traced.variables] == ["weight", "state", "statistic"]


@pytest.mark.parametrize("forward", ["Switch", "Enter"])
def test_control_flow_hands_on_resources(forward):
    handed = node("cond/Switch", forward, "w", "p", T=dtype(RESOURCE))
    read = node(
        "cond/read", "ReadVariableOp", "cond/Switch:1" if forward == "Switch" else "cond/Switch", dtype=dtype(FLOAT)
    )
    traced = trace(variable("w", "VarHandleOp"), handed, read, node("use", "Neg", "cond/read"))
    assert found(traced) == ({"cond/read": "full"}, [], [])


def test_control_flow_hands_on_refs():
    handed = node("cond/Switch", "RefSwitch", "w", "p", T=dtype(FLOAT))
    traced = trace(
        variable("w"), handed, node("use", "Neg", "cond/Switch:1"), node("w/inert", "IsVariableInitialized", "w")
    )
    assert found(traced) == ({"use": "full"}, [], [])
