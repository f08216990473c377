"""Object graphs: paths, keys, matching, slots, and graphs that are damaged or go round in circles."""

import numpy as np
import pytest

from graphfreeze.errors import InputOutputError, InternalError
from graphfreeze.savedmodel import (
    SlotVariable,
    add_child,
    add_variable_value,
    append_node,
    check_graph,
    checkpoint_key,
    children,
    match_nodes,
    node_at,
    node_paths,
    object_paths,
    protos,
    read_saved_model,
    read_trackable_graph,
    recompute_keys,
    refresh_checkpoint_values,
    slot_key,
    slot_variables,
    trackable_graph_tensor,
    variable_keys,
    variable_nodes,
)


def graph_of(edges, kind=protos.SavedObjectGraph):
    """A graph from ``{node: {child name: node}}``."""
    graph = kind()
    for number in range(1 + max([*edges, *(child for names in edges.values() for child in names.values())])):
        node = graph.nodes.add()
        for name, child in edges.get(number, {}).items():
            node.children.add(local_name=name, node_id=child)
    return graph


def trackable_of(edges, **keys):
    graph = graph_of(edges, protos.TrackableObjectGraph)
    for number, key in keys.items():
        add_variable_value(graph.nodes[int(number.removeprefix("n"))], key, "name")
    return graph


def test_paths_are_shortest_and_in_order_of_the_children():
    graph = graph_of({0: {"a": 1, "b": 2}, 1: {"deep": 3}, 2: {"x": 3, "y": 4}, 3: {"z": 4}})
    assert object_paths(graph) == {0: "", 1: "a", 2: "b", 3: "a/deep", 4: "b/y"}
    assert list(node_paths(graph)) == [0, 1, 2, 3, 4]


def test_cycles_and_nodes_out_of_reach():
    graph = graph_of({0: {"a": 1}, 1: {"up": 0, "self": 1}, 2: {"a": 1}})
    assert object_paths(graph) == {0: "", 1: "a"}
    assert match_nodes(graph, graph) == {0: 0, 1: 1}


def test_a_chain_of_ten_thousand():
    graph = graph_of({number: {"next": number + 1} for number in range(3000)})
    assert len(node_paths(graph)[3000]) == 3000


def test_empty_graph():
    assert node_paths(protos.SavedObjectGraph()) == {}
    assert node_at(protos.SavedObjectGraph(), ()) is None
    assert match_nodes(protos.SavedObjectGraph(), protos.TrackableObjectGraph()) == {}


@pytest.mark.parametrize(
    ("path", "key"),
    [
        (("a", "b"), "a/b/.ATTRIBUTES/VARIABLE_VALUE"),
        (("a/b", "c.d"), "a.Sb/c..d/.ATTRIBUTES/VARIABLE_VALUE"),
        (("./",), "...S/.ATTRIBUTES/VARIABLE_VALUE"),
        ((), "/.ATTRIBUTES/VARIABLE_VALUE"),
    ],
)
def test_keys(path, key):
    assert checkpoint_key(path) == key


def test_keys_of_slots():
    assert slot_key(("w",), ("opt",), "m/x") == "w/.OPTIMIZER_SLOT/opt/m.Sx/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.mark.parametrize("number", [7, -1, 2])
def test_a_child_that_is_not_there(number):
    graph = graph_of({0: {"a": 1}})
    graph.nodes[1].children.add(local_name="x", node_id=number)
    words = f"the object graph is damaged: the child 'x' of node 1 is node {number}, but there are 2 nodes"
    for use in (check_graph, node_paths, object_paths, slot_variables, lambda g: match_nodes(g, g), recompute_keys):
        with pytest.raises(InputOutputError) as caught:
            use(graph)
        assert str(caught.value).replace(" in the checkpoint", "") == words


@pytest.mark.parametrize("field", ["original_variable_node_id", "slot_variable_node_id"])
def test_a_slot_that_is_not_there(field):
    graph = graph_of({0: {"a": 1}})
    graph.nodes[1].slot_variables.add(slot_name="m", **{field: 9})
    name = "slot 'm'" if field.startswith("slot") else "variable of slot 'm'"
    with pytest.raises(InputOutputError) as caught:
        check_graph(graph)
    assert str(caught.value) == f"the object graph is damaged: the {name} of node 1 is node 9, but there are 2 nodes"


def test_matching_goes_by_names_and_not_by_numbers():
    saved = graph_of({0: {"f": 1, "v": 2, "opt": 3}, 3: {"w": 4}})
    for number in (2, 4, 5):
        saved.nodes.add() if number >= len(saved.nodes) else None
        saved.nodes[number].variable.name = f"v{number}"
    saved.nodes[3].slot_variables.add(slot_name="m", original_variable_node_id=2, slot_variable_node_id=5)
    other = trackable_of({0: {"opt": 1, "v": 2}, 1: {"w": 3}}, n2="kv", n3="kw")
    slot = other.nodes.add()
    add_variable_value(slot, "ks", "v5")
    other.nodes[1].slot_variables.add(slot_name="m", original_variable_node_id=2, slot_variable_node_id=4)
    assert match_nodes(saved, other) == {0: 0, 2: 2, 3: 1, 4: 3, 5: 4}
    assert variable_keys(saved, other) == {2: "kv", 4: "kw", 5: "ks"}
    assert list(variable_nodes(saved)) == [2, 4, 5]
    assert slot_variables(saved) == [SlotVariable(3, "m", 2, 5)]


def test_recomputed_keys():
    graph = trackable_of(
        {0: {"a": 1, "opt": 2}, 1: {"w": 3}, 4: {}, 5: {}},
        n3="old/.ATTRIBUTES/VARIABLE_VALUE",
        n4="slot/.ATTRIBUTES/VARIABLE_VALUE",
        n5="unreachable/.ATTRIBUTES/VARIABLE_VALUE",
    )
    graph.nodes[1].attributes.add(name="table", checkpoint_key="t/.ATTRIBUTES/table-keys")
    graph.nodes[2].attributes.add(name="OBJECT_CONFIG_JSON", checkpoint_key="opt/.ATTRIBUTES/OBJECT_CONFIG_JSON")
    graph.nodes[2].slot_variables.add(slot_name="m", original_variable_node_id=3, slot_variable_node_id=4)
    assert recompute_keys(graph) == {
        "t/.ATTRIBUTES/table-keys": "a/.ATTRIBUTES/table-keys",
        "old/.ATTRIBUTES/VARIABLE_VALUE": "a/w/.ATTRIBUTES/VARIABLE_VALUE",
        "slot/.ATTRIBUTES/VARIABLE_VALUE": "a/w/.OPTIMIZER_SLOT/opt/m/.ATTRIBUTES/VARIABLE_VALUE",
    }
    assert recompute_keys(graph) == {}


def test_appending():
    graph = graph_of({0: {"a": 1}})
    number, node = append_node(graph, 0, "graphfreeze")
    node.user_object.identifier = "_generic_user_object"
    add_child(graph, number, "w", 1)
    assert children(graph, 0) == {"a": 1, "graphfreeze": 2}
    assert node_at(graph, ("graphfreeze", "w")) == 1
    assert node_at(graph, ("graphfreeze", "x")) is None
    with pytest.raises(InternalError, match="node 0 has a child 'a' already"):
        append_node(graph, 0, "a")


def test_reading_the_graph_of_a_checkpoint(make_bundle):
    graph = trackable_of({0: {"v": 1}}, n1="v/.ATTRIBUTES/VARIABLE_VALUE")
    bundle = make_bundle(_CHECKPOINTABLE_OBJECT_GRAPH=trackable_graph_tensor(graph))
    assert read_trackable_graph(bundle) == graph
    assert read_trackable_graph(None) is None
    assert read_trackable_graph(make_bundle("other", x=[1.0])) is None


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (np.float32(1), "'_CHECKPOINTABLE_OBJECT_GRAPH' should be one string"),
        (np.array([b"", b""], object), "'_CHECKPOINTABLE_OBJECT_GRAPH' should be one string"),
        (np.array(b"\xff", object), "the object graph under '_CHECKPOINTABLE_OBJECT_GRAPH' cannot be parsed"),
    ],
)
def test_a_damaged_graph_in_a_checkpoint(make_bundle, value, problem):
    bundle = make_bundle(_CHECKPOINTABLE_OBJECT_GRAPH=value)
    with pytest.raises(InputOutputError) as caught:
        read_trackable_graph(bundle)
    assert str(caught.value) == (
        f"the checkpoint '{bundle.prefix}' is damaged: {problem}. Copy the model again from where it came from"
    )


def test_real_models_have_the_keys_that_we_compute(real_model):
    model = read_saved_model(real_model)
    graph = read_trackable_graph(model.bundle)
    if graph is None:
        pytest.skip("has no object graph")
    saved = model.proto.meta_graphs[0].object_graph_def
    keys = variable_keys(saved, graph)
    assert set(keys) == set(variable_nodes(saved))
    if saved.nodes:
        assert set(model.bundle.entries) <= {*keys.values(), "_CHECKPOINTABLE_OBJECT_GRAPH"}
    # A variable that had no value when it was saved has a key, but no tensor.
    missing = set(keys.values()) - set(model.bundle.entries)
    assert len(missing) == (2 if real_model.name == "tf24-uninitializedvariable" else 0)
    for number, key in keys.items():
        if key not in missing:
            assert model.bundle.shape(key) == tuple(dim.size for dim in saved.nodes[number].variable.shape.dim)
    assert recompute_keys(graph) == {}


def test_values_mark_all_that_lead_to_them():
    graph = trackable_of({0: {"a": 1, "b": 2}, 1: {"v": 3, "up": 0}, 2: {"w": 4}}, n3="k")
    refresh_checkpoint_values(graph)
    assert [node.has_checkpoint_values.value for node in graph.nodes] == [True, True, False, True, False]


@pytest.mark.tf
def test_keys_as_tensorflow_computes_them(tmp_path):
    import tensorflow as tf

    class Odd(tf.Module):
        def __init__(self):
            super().__init__()
            self.deep = tf.Module()
            self.deep.shared = tf.Variable([1.0])
            self.list = [tf.Variable([2.0]), {"a/b": tf.Variable([3.0]), "c.d": self.deep.shared}]
            self.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
            setattr(self, "x/y.z", tf.Variable([4.0]))

    root = Odd()
    optimizer = tf.compat.v1.train.AdamOptimizer()
    root.optimizer = optimizer
    root.back = root
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(root.deep.shared**2) + tf.reduce_sum(root.list[0] ** 2)
    variables = [root.deep.shared, root.list[0]]
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    tf.saved_model.save(root, str(tmp_path / "m"))

    model = read_saved_model(tmp_path / "m")
    graph = read_trackable_graph(model.bundle)
    expected = type(graph).FromString(graph.SerializeToString())
    assert len(slot_variables(graph)) == 4
    assert any(".S" in a.checkpoint_key and ".." in a.checkpoint_key for n in graph.nodes for a in n.attributes)
    for node in graph.nodes:
        for attribute in node.attributes:
            attribute.checkpoint_key = "wrong/.ATTRIBUTES/" + attribute.checkpoint_key.partition("/.ATTRIBUTES/")[2]
        node.ClearField("has_checkpoint_values")
    recompute_keys(graph)
    refresh_checkpoint_values(graph)
    assert graph == expected
    saved = model.proto.meta_graphs[0].object_graph_def
    keys = variable_keys(saved, graph)
    names = {number: variable.name for number, variable in variable_nodes(saved).items()}
    assert len(keys) == len(names)
    for slot in slot_variables(saved):
        assert keys[slot.slot].startswith(keys[slot.variable].partition("/.ATTR")[0] + "/.OPTIMIZER_SLOT/optimizer/")


@pytest.mark.tf
def test_a_written_model_loads_and_keeps_its_values(tmp_path):
    import tensorflow as tf

    from graphfreeze.savedmodel import write_saved_model

    root = tf.Module()
    root.v = tf.Variable([1.0, 2.0])
    root.f = tf.function(lambda x: x * root.v, input_signature=[tf.TensorSpec([2])])
    tf.saved_model.save(root, str(tmp_path / "m"))
    model = read_saved_model(tmp_path / "m")
    key = "v/.ATTRIBUTES/VARIABLE_VALUE"
    for name, options in {"copy": {}, "link": {"weights": "link"}, "packed": {"repack": True}}.items():
        write_saved_model(model, tmp_path / name, put={key: np.float32([3.0, 4.0])}, **options)
        loaded = tf.saved_model.load(str(tmp_path / name))
        assert loaded.f(tf.ones([2])).numpy().tolist() == [3.0, 4.0]
    assert tf.saved_model.load(str(tmp_path / "m")).v.numpy().tolist() == [1.0, 2.0]
