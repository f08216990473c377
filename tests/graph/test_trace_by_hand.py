"""Every use of every variable, on graphs made by hand for what no fixture holds."""

import pytest

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.ops import Access
from graphfreeze.graph.uses import Key
from tests.graph.protos import (
    BOOL,
    FLOAT,
    INT32,
    RESOURCE,
    VARIANT,
    Model,
    calls,
    dtype,
    dtypes,
    function,
    node,
    reader,
)


def caller(name, op, *, inputs=("v",), **attrs):
    """A function of variables v and w that hands them to a call and gives the call's first result."""
    return function(
        name,
        {"v": RESOURCE, "w": RESOURCE},
        [node("call", op, *inputs, **attrs)],
        {"y": (FLOAT, "call:output:0")},
    )


def model_with(root, *library, variables=2):
    model = Model()
    bound = [model.variable(name) for name in ("a", "b", "c")[:variables]]
    model.library(*library)
    model.concrete(root, *bound)
    return model


def reads_of(trace):
    return {v.name: [(f, r.node, r.access.path) for f, r in trace.reads(v.index)] for v in trace.variables}


def test_identity_forwards_a_handle_even_where_it_is_written_later():
    root = function(
        "root",
        {"v": RESOURCE},
        [node("read", "ReadVariableOp", "same:output:0"), node("same", "Identity", "v")],
        {"y": (FLOAT, "read:value:0")},
    )
    assert reads_of(model_with(root, variables=1).trace()) == {"a": [("root", "read", Access.FULL)]}


def test_identity_in_the_main_graph():
    model = model_with(reader("root"), variables=1)
    model.main(
        node("call", "PartitionedCall", "same", f=calls("root"), Tin=dtypes(RESOURCE)),
        node("same", "Identity", "a"),
    )
    (call,) = model.trace().main.calls
    assert call.callees[0].key == Key("root", ((0, 0),))


def test_initialisation_in_the_main_graph_is_neither_read_nor_write():
    model = model_with(reader("root"), variables=1)
    model.main(node("a/Assign", "AssignVariableOp", "a", "x"), node("a/Read", "ReadVariableOp", "a"))
    trace = model.trace()
    assert trace.main.reads == trace.main.writes == []


def test_an_unknown_op_that_takes_a_handle_is_noted():
    root = function(
        "root", {"v": RESOURCE}, [node("mine", "MyGather", "v", "v", "^v")], {"y": (FLOAT, "mine:output:0")}
    )
    trace = model_with(root, variables=1).trace()
    assert [(f, u.node, u.op) for f, u in trace.unknown(0)] == [("root", "mine", "MyGather")] * 2
    assert trace.bodies[trace.roots["root"]].kept == {0}


def test_a_handle_in_the_place_of_ids_is_no_read():
    root = function("root", {"v": RESOURCE}, [node("g", "ResourceGather", "x", "v")], {})
    assert [u.op for _, u in model_with(root, variables=1).trace().unknown(0)] == ["ResourceGather"]


def test_inert_ops_and_writes_keep_the_handle():
    root = function(
        "root",
        {"v": RESOURCE, "w": RESOURCE},
        [node("is", "VarIsInitializedOp", "v"), node("set", "AssignAddVariableOp", "w", "x")],
        {},
    )
    trace = model_with(root).trace()
    assert trace.bodies[trace.roots["root"]].kept == {0, 1}
    assert [w.op for _, w in trace.writes(1)] == ["AssignAddVariableOp"]


def test_recursion_is_refused():
    root = function(
        "again",
        {"v": RESOURCE},
        [node("call", "PartitionedCall", "v", f=calls("again"), Tin=dtypes(RESOURCE))],
        {"y": (FLOAT, "call:output:0")},
    )
    with pytest.raises(UnsupportedModelError) as error:
        model_with(root, variables=1).trace()
    assert str(error.value) == (
        "Function 'again' calls itself and passes variables on. graphfreeze follows calls without cycles only; unroll "
        "the recursion before saving."
    )


def test_a_missing_function_is_refused():
    root = caller("root", "PartitionedCall", f=calls("gone"), Tin=dtypes(RESOURCE))
    with pytest.raises(UnsupportedModelError) as error:
        model_with(root).trace()
    assert str(error.value) == (
        "Node 'call' (PartitionedCall) in function 'root' calls function 'gone', which the model's library does not "
        "hold. The file is damaged or incomplete; save the model again."
    )


def test_a_missing_function_in_the_main_graph_is_named_so():
    model = model_with(reader("root"), variables=1)
    model.main(node("call", "PartitionedCall", "a", f=calls("gone"), Tin=dtypes(RESOURCE)))
    with pytest.raises(UnsupportedModelError, match=r"^Node 'call' \(PartitionedCall\) in the main graph calls"):
        model.trace()


def test_branches_take_their_arguments_after_the_condition():
    root = caller("root", "If", inputs=("p", "w"), then_branch=calls("t"), else_branch=calls("e"), Tin=dtypes(RESOURCE))
    trace = model_with(root, reader("t"), reader("e", "VariableShape")).trace()
    assert reads_of(trace) == {"a": [], "b": [("t", "read", Access.FULL), ("e", "read", Access.SHAPE)]}
    (call,) = trace.bodies[trace.roots["root"]].calls
    assert (call.start, call.offset, call.slots) == (1, 0, ((0, 1),))


def test_case_runs_a_list_of_functions():
    root = caller("root", "Case", inputs=("i", "v"), branches=calls("t", "e"), Tin=dtypes(RESOURCE))
    trace = model_with(root, reader("t"), reader("e")).trace()
    assert [f for f, _ in trace.reads(0)] == ["t", "e"]


def loop(body_results, *, more=()):
    cond = function("cond", {"i": INT32, "v": RESOURCE, "w": RESOURCE}, [], {"go": (BOOL, "i")})
    body = function(
        "body",
        {"i": INT32, "v": RESOURCE, "w": RESOURCE},
        [node("same", "Identity", "v"), node("read", "ReadVariableOp", "v"), *more],
        {"i_out": (INT32, "i"), **{f"{n}_out": (RESOURCE, edge) for n, edge in body_results.items()}},
    )
    root = function(
        "root",
        {"v": RESOURCE, "w": RESOURCE},
        [
            node(
                "loop",
                "While",
                *("zero", "v", "w"),
                cond=calls("cond"),
                body=calls("body"),
                T=dtypes(INT32, RESOURCE, RESOURCE),
            ),
            node("after", "ReadVariableOp", "loop:output:1"),
        ],
        {"y": (FLOAT, "after:value:0")},
    )
    return model_with(root, cond, body).trace()


def test_a_loop_gives_its_handles_back():
    trace = loop({"v": "same:output:0", "w": "w"})
    assert reads_of(trace)["a"] == [("body", "read", Access.SHAPE), ("root", "after", Access.FULL)]
    root = trace.bodies[trace.roots["root"]]
    assert root.kept == {0}
    (key,) = (key for key in trace.bodies if key.function == "body")
    assert trace.bodies[key].returned == {1: (0, 1), 2: (1, 2)}
    assert trace.bodies[key].kept == {1}


def test_a_loop_that_swaps_its_handles_is_not_followed():
    trace = loop({"v": "w", "w": "v"})
    for variable in (0, 1):
        assert [(u.node, u.why) for _, u in trace.unknown(variable)] == [
            ("loop", "does not hand it on to its next round")
        ]


def test_branches_that_give_different_handles_are_not_followed():
    def pick(name, result):
        return function(name, {"v": RESOURCE, "w": RESOURCE}, [], {"h": (RESOURCE, result)})

    root = function(
        "root",
        {"v": RESOURCE, "w": RESOURCE},
        [
            node(
                "if",
                "If",
                *("p", "v", "w"),
                then_branch=calls("t"),
                else_branch=calls("e"),
                Tin=dtypes(RESOURCE, RESOURCE),
            ),
            node("read", "ReadVariableOp", "if:output:0"),
        ],
        {"y": (FLOAT, "read:value:0")},
    )
    trace = model_with(root, pick("t", "v"), pick("e", "w")).trace()
    for variable in (0, 1):
        assert [(u.node, u.why) for _, u in trace.unknown(variable)] == [("if", "gives back this variable or another")]
    same = model_with(root, pick("t", "v"), pick("e", "v")).trace()
    assert not any(body.unknown for body in same.all_bodies())
    assert [f for f, _ in same.reads(0)] == ["root"]


def test_a_data_function_takes_captures_as_its_last_arguments():
    mapped = function(
        "mapped",
        {"row": FLOAT, "v": RESOURCE},
        [node("read", "ReadVariableOp", "v", dtype=dtype(FLOAT))],
        {"y": (FLOAT, "read:value:0")},
    )
    root = function(
        "root",
        {"data": VARIANT, "v": RESOURCE, "w": RESOURCE},
        [
            node(
                "map",
                "ParallelMapDatasetV2",
                *("data", "w", "parallel"),
                f=calls("mapped"),
                Targuments=dtypes(RESOURCE),
            )
        ],
        {"y": (VARIANT, "map:handle:0")},
    )
    trace = model_with(root, mapped).trace()
    assert [f for f, _ in trace.reads(1)] == ["mapped"]
    (call,) = trace.bodies[trace.roots["root"]].calls
    assert (call.start, call.offset, call.slots) == (1, 1, ((1, 2),))


def test_a_handle_outside_the_arguments_of_a_call_is_not_followed():
    reduce = function("reduce", {"state": RESOURCE, "row": FLOAT}, [], {"y": (RESOURCE, "state")})
    root = function(
        "root",
        {"data": VARIANT, "v": RESOURCE, "w": RESOURCE},
        [
            node(
                "reduce",
                "ReduceDataset",
                *("data", "v"),
                f=calls("reduce"),
                Tstate=dtypes(RESOURCE),
                Targuments=dtypes(),
            )
        ],
        {},
    )
    trace = model_with(root, reduce).trace()
    assert [(u.op, u.why) for _, u in trace.unknown(0)] == [
        ("ReduceDataset", "takes it otherwise than as an argument of its function")
    ]


def test_a_concrete_function_that_the_library_lacks_is_passed_over():
    model = model_with(reader("root"), variables=1)
    model.graph.concrete_functions["gone"].bound_inputs.append(1)
    assert list(model.trace().roots) == ["root"]


def test_captured_tensors_count_as_uses():
    model = model_with(
        function(
            "root", {"v": RESOURCE}, [node("read", "ReadVariableOp", "v"), node("s", "Shape", "read:value:0")], {}
        ),
        variables=1,
    )
    assert [r.access.path for _, r in model.trace().reads(0)] == [Access.SHAPE]
    captured = model.graph.nodes.add().captured_tensor
    captured.name, captured.concrete_function = "read:0", "root"
    assert [r.access.path for _, r in model.trace().reads(0)] == [Access.FULL]
