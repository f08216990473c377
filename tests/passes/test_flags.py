"""Every record of what trains tells the truth: flags, Keras's copies, and the root's lists in both object graphs."""

import json

import pytest

from graphfreeze.savedmodel import children, match_nodes, object_paths, variable_keys
from tests.passes.rewriting import list_of, rewritten


def flags(meta):
    paths = object_paths(meta.object_graph_def)
    nodes = meta.object_graph_def.nodes
    return {paths[i]: n.variable.trainable for i, n in enumerate(nodes) if n.WhichOneof("kind") == "variable"}


def info_of(meta):
    (function,) = (f for f in meta.graph_def.library.function if "info_graphfreeze" in f.signature.name)
    return json.loads(function.node_def[0].attr["value"].tensor.string_val[0])


def captured(meta):
    """Paths of the variables that ``info`` captures."""
    (name,) = (n for n in meta.object_graph_def.concrete_functions if "info_graphfreeze" in n)
    paths = object_paths(meta.object_graph_def)
    return [paths[n] for n in meta.object_graph_def.concrete_functions[name].bound_inputs]


def test_a_stopped_variable_is_off_and_a_masked_one_stays_on():
    done = rewritten("mlp", "dense_0/kernel", "dense_1/kernel[[0, 1], [1, 0]]", "out/kernel[:2]")
    assert flags(done.new) == {
        "dense_0/kernel": False,
        "dense_0/bias": True,
        "dense_1/kernel": True,
        "dense_1/bias": True,
        "out/kernel": False,
        "out/bias": True,
        "graphfreeze/variables/0": False,
        "graphfreeze/variables/1": True,
    }
    assert captured(done.new) == [
        "dense_0/bias",
        "dense_1/kernel",
        "dense_1/bias",
        "graphfreeze/variables/1",
        "out/bias",
    ]


@pytest.mark.parametrize("model", ["keras_conv", "keras_embedding", "keras_mixed", "keras_gru", "digits"])
def test_the_copies_of_keras_do_not_go_on_claiming_to_train(model):
    name = "**/kernel"
    done = rewritten(model, name)
    off = {v.name for v in done.plan.meta_graphs[0].variables if v.strategy}
    assert off
    graph = done.new.object_graph_def
    for node in graph.nodes:
        if node.variable.name in off:
            assert not node.variable.trainable
    assert not off & set(list_of(done.new, "trainable_variables"))
    assert off <= set(list_of(done.new, "non_trainable_variables"))
    assert list_of(done.new, "variables") == list_of(done.old, "variables")


def test_a_part_takes_the_place_of_its_variable_in_the_lists():
    done = rewritten(
        "keras_lists", "encoder/first/kernel[:2]", "encoder/second/bias", "encoder/second/kernel[[0], [0]]"
    )
    assert list_of(done.old, "trainable_variables") == [
        *("encoder/first/bias", "encoder/first/kernel", "encoder/second/bias", "encoder/second/kernel"),
    ]
    assert list_of(done.new, "trainable_variables") == [
        *("encoder/first/bias", "encoder/first/kernel/graphfreeze/trainable", "encoder/second/kernel"),
    ]
    assert list_of(done.new, "variables") == [
        *list_of(done.old, "variables"),
        "encoder/first/kernel/graphfreeze/trainable",
        "encoder/second/kernel/graphfreeze/frozen",
    ]


def test_the_lists_of_both_object_graphs_agree():
    done = rewritten("keras_embedding", "sequential/emb/embeddings[:5]", "sequential/dense/bias")
    graph, bundle_graph = done.new.object_graph_def, done.after.bundle_graph
    for name in ("variables", "trainable_variables", "non_trainable_variables"):
        found = children(graph, children(graph, 0)[name])
        in_bundle = children(bundle_graph, children(bundle_graph, 0)[name])
        matched = match_nodes(graph, bundle_graph)
        assert {k: matched[n] for k, n in found.items() if n in matched} == in_bundle
        assert set(found) == set(in_bundle)


def test_enabling_a_whole_variable_turns_it_on_everywhere():
    done = rewritten("keras_lists", "encoder/first/bias", train=("offset",), enable=True)
    assert flags(done.new)["offset"] is True
    assert list_of(done.new, "trainable_variables") == [*list_of(done.old, "trainable_variables")[1:], "offset"]
    assert info_of(done.new)["enabled"] == ["offset"]
    assert captured(done.new)[0] == "offset"


def test_enabling_rows_trains_their_part_alone():
    done = rewritten("keras_lists", train=("offset[:1]",), enable=True, strategy="split")
    assert flags(done.new)["offset"] is False
    assert list_of(done.new, "trainable_variables") == ["offset/graphfreeze/trainable"]
    assert captured(done.new) == ["variables/5"]  # the list of all variables leads to the part, too


def test_enabling_in_keras_moves_from_list_to_list():
    name = "norm/moving_mean"
    done = rewritten("keras_conv", train=("norm/moving_mean", "**"), enable=True, state=True)
    assert name in list_of(done.old, "non_trainable_variables")
    assert name not in list_of(done.new, "non_trainable_variables")
    assert name in list_of(done.new, "trainable_variables")
    assert all(n.variable.trainable for n in done.new.object_graph_def.nodes if n.variable.name == name)


def only_in(*lists):
    """Leaves a module's variables to the root's lists of these names alone."""

    def change(draft):
        for graph in (draft.model.proto.meta_graphs[0].object_graph_def, draft.bundle_graph):
            kept = [c for c in graph.nodes[0].children if c.local_name in lists]
            kept = [type(c).FromString(c.SerializeToString()) for c in kept]
            del graph.nodes[0].children[:]
            graph.nodes[0].children.extend(kept)

    return change


def test_a_variable_that_only_the_list_held_can_still_be_found_in_both_graphs():
    done = rewritten("keras_lists", "encoder/first/bias", change=only_in("trainable_variables"))
    graph, bundle_graph = done.new.object_graph_def, done.after.bundle_graph
    (number,) = (i for i, n in enumerate(graph.nodes) if n.variable.name == "encoder/first/bias")
    assert object_paths(graph)[number] == "graphfreeze/held/0"
    keys = variable_keys(graph, bundle_graph)
    assert keys == variable_keys(done.old.object_graph_def, done.before.bundle_graph)
    assert graph.nodes[children(graph, 0)["graphfreeze"]].user_object.version.producer == 1


def test_a_variable_that_moves_to_another_list_can_still_be_found_in_both_graphs(monkeypatch):
    def change(draft):
        """As Keras exports: trainable_variables and non_trainable_variables, no list of all."""
        only_in("trainable_variables")(draft)
        for graph in (draft.model.proto.meta_graphs[0].object_graph_def, draft.bundle_graph):
            number = len(graph.nodes)
            graph.nodes.add()
            if graph is not draft.bundle_graph:
                graph.nodes[number].user_object.identifier = "trackable_list_wrapper"
            graph.nodes[0].children.add(node_id=number, local_name="non_trainable_variables")

    done = rewritten("keras_lists", "encoder/first/bias", "encoder/first/kernel", change=change)
    graph, bundle_graph = done.new.object_graph_def, done.after.bundle_graph
    assert list_of(done.new, "non_trainable_variables") == ["encoder/first/bias", "encoder/first/kernel"]
    assert variable_keys(graph, bundle_graph) == variable_keys(done.old.object_graph_def, done.before.bundle_graph)
