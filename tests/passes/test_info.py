"""The function ``info``: what was done, as text, and the list of what trains, as captures."""

import json

from graphfreeze.passes.variables import CHILD
from graphfreeze.savedmodel import children, digest
from graphfreeze.selection import Spec
from tests.passes.rewriting import rewritten


def info_of(done):
    (function,) = (f for f in done.new.graph_def.library.function if "info_graphfreeze" in f.signature.name)
    return function, json.loads(function.node_def[0].attr["value"].tensor.string_val[0])


def test_what_it_says():
    done = rewritten("mlp", "dense_0/kernel", "out/kernel[:2]")
    _, data = info_of(done)
    assert {"format", "source", "spec", "variables", "enabled", "lists"} <= set(data)
    assert data["format"] == 1
    assert data["source"] == digest(done.before.model)
    assert [str(rule) for rule in Spec.from_dict(data["spec"]).rules] == [
        "freeze dense_0/kernel",
        "freeze out/kernel[:2]",
    ]
    assert [(v["name"], v["strategy"], v["trainable"]) for v in data["variables"]] == [
        ("dense_0/kernel", "stop", True),
        ("out/kernel", "split", True),
    ]


def test_it_is_a_function_of_nothing_that_returns_its_constant():
    function, _ = info_of(rewritten("mlp", "dense_0/kernel"))
    assert [n.op for n in function.node_def] == ["Const", "Identity"]
    assert [a.type for a in function.signature.input_arg] == [20] * 5
    assert len(function.attr["_input_shapes"].list.shape) == 5
    assert [(o.name, o.type) for o in function.signature.output_arg] == [("identity", 7)]
    assert dict(function.ret) == {"identity": "Identity:output:0"}
    used = {i for n in function.node_def for i in n.input}
    assert not used & {a.name for a in function.signature.input_arg}


def test_it_hangs_under_the_child_of_the_root_alone():
    done = rewritten("mlp", "dense_0/kernel", "out/kernel[:2]")
    graph, bundle_graph = done.new.object_graph_def, done.after.bundle_graph
    child = children(graph, 0)[CHILD]
    assert list(children(graph, child)) == ["variables", "info"]
    assert list(children(bundle_graph, children(bundle_graph, 0)[CHILD])) == ["variables"]
    assert graph.nodes[0].children[-1].local_name == CHILD
    (name,) = graph.nodes[children(graph, child)["info"]].function.concrete_functions
    assert len(graph.concrete_functions[name].bound_inputs) == 5


def test_without_new_variables_the_checkpoint_stays_as_it_is():
    done = rewritten("mlp", "dense_0/*")
    assert done.after.bundle_graph == done.before.bundle_graph
    assert done.after.put == {}
    assert done.new.saver_def == done.old.saver_def


def test_captures_are_what_trains_in_the_order_of_the_source():
    done = rewritten("nested", "level_2/kernel", "level_4/kernel[:1]", "level_5/kernel[0, 0]")
    graph = done.new.object_graph_def
    (name,) = (n for n in graph.concrete_functions if "info_graphfreeze" in n)
    assert [graph.nodes[n].variable.name for n in graph.concrete_functions[name].bound_inputs] == [
        "level_1/kernel",
        "level_3/kernel",
        "level_4/kernel/graphfreeze/trainable",
        "level_5/kernel",
    ]
    assert all(graph.nodes[n].variable.trainable for n in graph.concrete_functions[name].bound_inputs)


def test_nothing_trains():
    function, _ = info_of(rewritten("mlp", "**", allow_empty=True))
    assert not function.signature.input_arg


def test_the_child_is_the_same_in_a_model_that_has_one_of_that_kind_of_function():
    done = rewritten("keras_embedding", "sequential/emb/embeddings[:5]")
    graph = done.new.object_graph_def
    paths = children(graph, 0)
    assert CHILD in paths
    assert graph.nodes[paths[CHILD]].user_object.identifier == "_generic_user_object"
