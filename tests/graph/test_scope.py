from graphfreeze.graph.scope import MAIN, Scope, Use
from graphfreeze.savedmodel.protos import GraphDef
from tests.graph.protos import FLOAT, RESOURCE, function, node, scope, shapes


def test_uses_in_a_function_are_inputs_and_results_however_the_edge_is_written():
    made = scope(
        node("read", "ReadVariableOp", "v"),
        node("a", "Add", "read:value", "read:value:0", "^read"),
        results={"y": (FLOAT, "read:value:0")},
    )
    assert made.uses("read:value:0") == (Use("a", 0), Use("a", 1), Use("", result="y"))
    assert made.uses("v") == (Use("read", 0),)
    assert made.uses("nothing") == ()


def test_uses_in_the_main_graph():
    made = Scope(GraphDef(node=[node("x", "Split"), node("y", "Add", "x:0", "x:1", "^x")]))
    assert made.name == MAIN
    assert made.uses("x") == (Use("y", 0),)
    assert made.uses("x:1") == (Use("y", 1),)
    assert made.data_inputs(made.nodes["y"]) == ["x:0", "x:1"]


def test_a_scope_is_a_snapshot_of_the_uses():
    made = scope(node("read", "ReadVariableOp", "v"), node("a", "Neg", "read:value:0"))
    assert made.uses("read:value:0") == (Use("a", 0),)
    made.node_list.add(name="b", op="Neg", input=["read:value:0"])
    assert made.uses("read:value:0") == (Use("a", 0),)


def test_static_shapes():
    made = scope(
        node("known", "Const", _output_shapes=shapes((2, -1))),
        node("split", "Split", _output_shapes=shapes((1, 3), (2, 3))),
        node("unique", "Unique", _output_shapes=shapes((5, 1), (7,))),
        node("silent", "Const"),
        arguments={"x": FLOAT, "v": RESOURCE},
    )
    made.proto.arg_attr[0].attr["_output_shapes"].CopyFrom(shapes((4, 5)))
    assert made.static_shape("known:output:0") == (2, -1)
    assert made.static_shape("split:output:1") == (2, 3)
    assert made.static_shape("x") == (4, 5)
    assert made.static_shape("v") is None
    assert made.static_shape("silent:output:0") is None
    assert made.static_shape("missing:output:0") is None


def test_the_shape_of_one_of_several_named_outputs_is_not_guessed():
    made = scope(node("unique", "Unique", _output_shapes=shapes((5, 1), (7,))))
    assert made.static_shape("unique:idx:0") is None
    main = Scope(GraphDef(node=[node("unique", "Unique", _output_shapes=shapes((5, 1), (7,)))]))
    assert main.static_shape("unique:1") == (7,)


def test_looking_changes_nothing():
    made = function("f", {"x": FLOAT}, [node("a", "Neg", "x")], {"y": (FLOAT, "a:y:0")})
    before = made.SerializeToString(deterministic=True)
    view = Scope(made)
    assert view.static_shape("x") is None
    assert view.static_shape("a:y:0") is None
    assert made.SerializeToString(deterministic=True) == before


def test_outputs_of_a_call():
    made = scope(
        node("call", "PartitionedCall", "v"),
        node("a", "Neg", "call:output:2"),
        results={"y": (FLOAT, "call:output:0")},
    )
    assert sorted(made.outputs(made.nodes["call"])) == [(0, "call:output:0"), (2, "call:output:2")]
