"""Variables under one identity each, wherever TensorFlow wrote them down."""

import pytest

from graphfreeze.graph.trace import trace_meta_graph
from graphfreeze.graph.variables import element_bytes, find_variables, is_float, static_shape
from graphfreeze.savedmodel import open_draft
from graphfreeze.savedmodel.protos import TensorShapeProto
from tests.graph.protos import RESOURCE, Model, calls, dtypes, node, reader


@pytest.fixture
def variables_of(fixture_model):
    def find(name):
        draft = open_draft(fixture_model(name))
        (meta,) = draft.model.proto.meta_graphs
        return {v.path: v for v in find_variables(draft, meta)}

    return find


def test_five_levels_deep(variables_of):
    found = variables_of("nested")
    paths = ["/".join([*["below"] * depth, "kernel"]) for depth in range(5)]
    assert list(found) == paths
    assert [found[p].name for p in paths] == [f"level_{n}/kernel" for n in range(1, 6)]
    assert [found[p].key for p in paths] == [f"{p}/.ATTRIBUTES/VARIABLE_VALUE" for p in paths]
    assert [found[p].handles for p in paths] == [(f"level_{n}/kernel",) for n in range(1, 6)]


def test_unnamed_variables_find_their_handles_through_the_saver(variables_of):
    found = variables_of("unnamed")
    assert {v.name for v in found.values()} == {"Variable"}
    assert {p: v.handles for p, v in found.items()} == {
        "first": ("Variable_3",),
        "second": ("Variable_2",),
        "pair/0": ("Variable_1",),
        "pair/1": ("Variable",),
    }


def test_the_second_copies_of_keras_are_folded_in(variables_of):
    found = variables_of("keras_conv")
    assert list(found) == [f"variables/{n}" for n in range(8)]
    assert [v.index for v in found.values()] == list(range(8))
    assert all(len(v.copies) == 1 and len(v.handles) == 2 for v in found.values())
    assert len({v.copies for v in found.values()}) == 8


def test_copies_are_told_apart_by_the_signatures_where_names_repeat(fixture_model):
    draft = open_draft(fixture_model("keras_embedding"))
    (meta,) = draft.model.proto.meta_graphs
    before = find_variables(draft, meta)
    for graph_node in meta.object_graph_def.nodes:
        if graph_node.WhichOneof("kind") == "variable":
            graph_node.variable.name = "Variable"
            graph_node.variable.ClearField("shape")
    after = find_variables(draft, meta)
    assert [(v.path, v.copies, v.handles) for v in after] == [(v.path, v.copies, v.handles) for v in before]


def test_a_copy_that_no_signature_and_no_name_explains_stays_a_variable_of_its_own(fixture_model):
    draft = open_draft(fixture_model("keras_embedding"))
    (meta,) = draft.model.proto.meta_graphs
    for number, graph_node in enumerate(meta.object_graph_def.nodes):
        if graph_node.WhichOneof("kind") == "variable":
            graph_node.variable.name = f"v{number}"
    meta.graph_def.ClearField("node")
    assert len(find_variables(draft, meta)) == 6


@pytest.mark.parametrize(
    ("fixture", "states"),
    [
        ("slots", ["iteration", "learning_rate", "kernel_0_momentum", "velocity", "momentum", "velocity"]),
        ("digits", ["seed_generator_state"]),
        ("keras_lists", ["offset", "save_counter"]),
        ("scalars", ["counter", "label"]),
    ],
)
def test_kinds_of_state(fixture_model, fixture, states):
    draft = open_draft(fixture_model(fixture))
    trace = trace_meta_graph(draft, draft.model.proto.meta_graphs[0])
    found = [v.name for v in trace.variables if trace.kind(v) == "state"]
    assert len(found) == len(states)
    assert all(name.endswith(end) for name, end in zip(found, states, strict=True))


def test_kinds_of_statistics_go_by_the_writes(fixture_model):
    draft = open_draft(fixture_model("statistics"))
    trace = trace_meta_graph(draft, draft.model.proto.meta_graphs[0])
    assert {v.name: trace.kind(v) for v in trace.variables} == {
        "kernel": "weight",
        "scale": "weight",
        "moving_mean": "statistic",
        "kernel/average": "statistic",
        "steps": "state",
    }


def test_what_graphfreeze_added_is_state():
    model = Model()
    model.variable("w/graphfreeze/frozen", "copy")
    trace = model.trace()
    assert [trace.kind(v) for v in trace.variables] == ["state"]


def test_slots_are_state_even_where_they_claim_to_train():
    model = Model()
    weight, slot = model.variable("w"), model.variable("w/momentum", "slot")
    optimizer = model.graph.nodes.add()
    optimizer.user_object.identifier = "optimizer"
    optimizer.slot_variables.add(original_variable_node_id=weight, slot_variable_node_id=slot, slot_name="m")
    optimizer.children.add(node_id=weight, local_name="the weight")
    step = len(model.graph.nodes)
    model.graph.nodes.add().variable.dtype = 1
    optimizer.children.add(node_id=step, local_name="step")
    trace = model.trace()
    assert {v.path: trace.kind(v) for v in trace.variables if v.node_id != step} == {"w": "weight", "slot": "state"}
    assert next(trace.kind(v) for v in trace.variables if v.node_id == step) == "state"


def test_handles_that_share_a_name_are_one_variable():
    model = Model()
    model.variable("w")
    alias = node("alias", "VarHandleOp", shared_name="w")
    elsewhere = node("elsewhere", "VarHandleOp", shared_name="w", container="other")
    model.main(alias, elsewhere)
    (found,) = find_variables(model.draft(), model.meta)
    assert found.handles == ("w", "alias")


def test_handles_are_found_by_the_call_where_names_repeat():
    model = Model()
    first, second = model.variable("x", "first"), model.variable("x", "second")
    for n, name in enumerate(("one", "two")):
        model.meta.graph_def.node[n].name = name
        model.meta.graph_def.node[n].attr["shared_name"].s = name.encode()
    for variable, handle in ((first, "two"), (second, "one")):
        model.concrete(reader(f"f{variable}"), variable)
        model.main(node(f"call{variable}", "PartitionedCall", handle, f=calls(f"f{variable}"), Tin=dtypes(RESOURCE)))
    assert {v.path: v.handles for v in find_variables(model.draft(), model.meta)} == {
        "first": ("two",),
        "second": ("one",),
    }


def test_shapes():
    unknown = TensorShapeProto(unknown_rank=True)
    partly = TensorShapeProto(dim=[TensorShapeProto.Dim(size=-1), TensorShapeProto.Dim(size=4)])
    assert static_shape(unknown) is static_shape(partly) is None
    assert static_shape(TensorShapeProto()) == ()


def test_an_open_shape_is_the_checkpoints(variables_of):
    assert variables_of("shapes")["open"].shape == (6, 4)


def test_a_variable_of_no_known_shape_counts_nothing():
    model = Model()
    model.variable("w")
    model.graph.nodes[1].variable.shape.unknown_rank = True
    (found,) = find_variables(model.draft(), model.meta)
    assert (found.shape, found.elements, found.key) == (None, 0, None)


@pytest.mark.parametrize(
    ("dtype", "floating", "size"),
    [
        ("float16", True, 2),
        ("bfloat16", True, 2),
        ("float32", True, 4),
        ("float64", True, 8),
        ("complex64", True, 8),
        ("complex128", True, 16),
        ("int64", False, 8),
        ("bool", False, 1),
        ("string", False, 0),
        ("resource", False, 0),
    ],
)
def test_dtypes(dtype, floating, size):
    assert (is_float(dtype), element_bytes(dtype)) == (floating, size)
