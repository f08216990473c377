"""All passes together, over every fixture and kind of region; nothing runs."""

import os
from collections import Counter

import pytest

from graphfreeze.graph.attrs import ADDED
from graphfreeze.graph.ops import READS
from graphfreeze.graph.refs import producer
from graphfreeze.graph.trace import trace_meta_graph
from graphfreeze.savedmodel import match_nodes, open_draft
from tests.conftest import MODELS, OBJECT_MODELS
from tests.passes.invariants import broken
from tests.passes.rewriting import rewritten

FULL = os.environ.get("GRAPHFREEZE_FULL") == "1"
FIXTURES = OBJECT_MODELS
KINDS = {
    "whole": ("", {}),
    "strict": ("", {"strict": True}),
    "rows": ("[:1]", {}),
    "stepped": ("[::2]", {"strategy": "mask"}),
    "live": ("[:1]", {"strategy": "mask", "copy": "live"}),
    "points": ("[POINTS]", {}),
}


def selectors(name, index):
    """Every weight of a fixture that has more than one element, with an index."""
    draft = open_draft(MODELS / name)
    trace = trace_meta_graph(draft, draft.model.proto.meta_graphs[0])
    found = []
    for variable in trace.variables:
        if trace.kind(variable) != "weight":
            continue
        if index and (variable.elements < 2 or variable.shape[0] < 2):
            continue
        points = ", ".join(["[0, 1]"] + ["[0, 1]" if size > 1 else "[0, 0]" for size in variable.shape[1:]])
        found.append(variable.path + index.replace("POINTS", points))
    return found


PAIRS = [(name, kind) for n, name in enumerate(FIXTURES) for k, kind in enumerate(KINDS) if FULL or (n + k) % 3 == 0]


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_what_holds_of_every_rewritten_model(name, kind):
    index, options = KINDS[kind]
    chosen = selectors(name, index)
    if not chosen:
        assert name == "scalars"
        return
    assert broken(rewritten(name, *chosen, allow_empty=True, **options)) == []


@pytest.mark.parametrize("name", FIXTURES)
def test_one_variable_alone_leaves_the_rest(name):
    chosen = selectors(name, "")
    chosen = ["scale"] if name == "scalars" else chosen
    done = rewritten(name, chosen[-1], allow_empty=True)
    assert broken(done) == []
    old = [f.signature.name for f in done.old.graph_def.library.function]
    new = [f.signature.name for f in done.new.graph_def.library.function]
    gone = [n for n in old if n not in new]
    assert gone or not done.plan.meta_graphs[0].touched()[0].reads
    # Every function that is gone has a changed one in its place, in the same order.
    assert [n for n in new if n in old] == [n for n in old if n in new]
    assert len([n for n in new if n not in old]) >= len(gone)


def test_a_model_in_which_nothing_is_to_be_done_stays_as_it_is():
    done = rewritten("mlp", train=("**",))
    assert done.old == done.new
    assert not done.after.put
    assert done.before.bundle_graph == done.after.bundle_graph


@pytest.mark.parametrize("name", ["shared_function", "scan", "keras_gru"])
def test_rewriting_twice_gives_the_same_bytes(name):
    first, second = (rewritten(name, *selectors(name, "[:1]")) for _ in range(2))
    assert first.after.model.proto.SerializeToString(deterministic=True) == (
        second.after.model.proto.SerializeToString(deterministic=True)
    )
    assert first.after.bundle_graph == second.after.bundle_graph
    assert {k: v.tobytes() for k, v in first.after.put.items()} == {k: v.tobytes() for k, v in second.after.put.items()}


def added_ops(done, stem):
    """How many nodes of each op were added to the changed functions of that name, those of the saver left out."""
    changed = [f for f in done.functions(stem) if "_traced_" not in f.signature.name]
    return [dict(Counter(n.op for n in f.node_def if ADDED in n.attr)) for f in changed]


def only_edits(done):
    """The ops that were added to the only function where any were."""
    (counts,) = (c for c in added_ops(done, "") if c)
    return counts


def test_edits_of_a_stopped_variable():
    assert only_edits(rewritten("mlp", "dense_0/kernel")) == {"StopGradient": 1}


def test_edits_of_a_strict_variable():
    done = rewritten("mlp", "dense_0/kernel", strict=True)
    assert only_edits(done) == {"ReadVariableOp": 1, "StopGradient": 1}


def test_edits_of_a_split_lookup():
    assert only_edits(rewritten("embedding", "emb/embeddings[:5]")) == {
        **dict.fromkeys(["ResourceGather", "StopGradient", "TensorScatterUpdate", "Shape"], 1),
        **dict.fromkeys(["GreaterEqual", "Where", "GatherNd", "Sub"], 1),
        "Reshape": 3,
        "Const": 3,
    }


def test_edits_of_split_columns():
    done = rewritten("mlp", "dense_0/kernel[:, :3]")
    assert only_edits(done) == {"ReadVariableOp": 1, "StopGradient": 1, "Slice": 1, "ConcatV2": 1, "Const": 3}


def test_edits_of_a_mask():
    done = rewritten("mlp", "out/bias[::2]", strategy="mask")
    assert only_edits(done) == {
        **dict.fromkeys(["ReadVariableOp", "StopGradient", "ExpandDims", "Pad", "Slice", "Range", "SelectV2"], 1),
        **dict.fromkeys(["FloorMod", "Equal"], 1),
        "Reshape": 2,
        "Const": 8,
    }


def while_of(done, stem="__call__"):
    (function,) = done.functions(stem)
    (loop,) = (n for n in function.node_def if n.op in ("While", "StatelessWhile"))
    library = {f.signature.name: f for f in done.new.graph_def.library.function}
    old = {f.signature.name: f for f in done.old.graph_def.library.function}
    source = next(f for n, f in old.items() if n.startswith(f"__inference_{stem}"))
    (before,) = (n for n in source.node_def if n.name == loop.name)
    return before, loop, library[loop.attr["cond"].func.name], library[loop.attr["body"].func.name]


def test_a_lookup_in_a_loop_appends_captures_and_bumps_the_outputs():
    done = rewritten("scan", "table[:4]")
    before, loop, cond, body = while_of(done)
    added = len(loop.attr["T"].list.type) - len(before.attr["T"].list.type)
    assert added == 1
    assert loop.attr["_num_original_outputs"].i == before.attr["_num_original_outputs"].i + added
    assert len(body.signature.output_arg) == len(body.signature.input_arg) == len(cond.signature.input_arg)
    last = body.signature.input_arg[-1].name
    assert body.ret[body.signature.output_arg[-1].name] == last
    assert [n.op for n in body.node_def if last in n.input] == ["ResourceGather"]


def test_a_full_read_in_a_loop_is_merged_before_it_and_takes_the_place_of_the_handle():
    done = rewritten("loop", "kernel[:, :2]")
    before, loop, cond, body = while_of(done)
    assert len(loop.attr["T"].list.type) == len(before.attr["T"].list.type)
    changed = [
        i for i, (a, b) in enumerate(zip(before.attr["T"].list.type, loop.attr["T"].list.type, strict=True)) if a != b
    ]
    assert len(changed) == 1
    (slot,) = changed
    assert loop.attr["T"].list.type[slot] == body.signature.input_arg[slot].type == cond.signature.input_arg[slot].type
    assert body.signature.output_arg[slot].type == loop.attr["T"].list.type[slot]
    assert [d.size for d in loop.attr["output_shapes"].list.shape[slot].dim] == [4, 4]
    assert loop.attr["_num_original_outputs"].i == before.attr["_num_original_outputs"].i
    assert not [n for n in body.node_def if n.op == "ReadVariableOp" and body.signature.input_arg[slot].name in n.input]


def test_a_branch_in_a_loop_takes_the_value_too():
    done = rewritten("cond_in_loop", "kernel[:2]")
    _, _, _, body = while_of(done)
    (branch,) = (n for n in body.node_def if n.op in ("If", "StatelessIf"))
    library = {f.signature.name: f for f in done.new.graph_def.library.function}
    for attribute in ("then_branch", "else_branch"):
        function = library[branch.attr[attribute].func.name]
        assert [a.type for a in function.signature.input_arg] == list(branch.attr["Tin"].list.type)
        assert not [n for n in function.node_def if n.op == "ReadVariableOp"]


def test_data_functions_take_values():
    done = rewritten("datasets", "kernel[:2]")
    for function in done.new.graph_def.library.function:
        if any(n.op in ("MapDataset", "MapDefun", "ReduceDataset") for n in function.node_def):
            (node,) = (n for n in function.node_def if n.op in ("MapDefun", "ReduceDataset"))
            types = node.attr["Tcaptured" if node.op == "MapDefun" else "Targuments"].list.type
            assert 20 not in types


def test_every_binding_of_a_shared_function_gets_its_own():
    done = rewritten("shared_function", "a[:2]", "b[:, 1]")
    # a and b are frozen differently, c is not at all.
    assert len(done.functions("_layer")) == 2
    assert len(done.functions("_two_layers")) == 2
    assert [f for f in done.new.graph_def.library.function if f.signature.name.startswith("__inference__layer")]
    assert broken(done) == []


def test_new_names_differ_and_originals_are_gone():
    done = rewritten("mlp", "dense_0/kernel")
    old = {f.signature.name for f in done.old.graph_def.library.function}
    new = {f.signature.name for f in done.new.graph_def.library.function}
    assert any("_graphfreeze_" in n for n in new - old)
    assert len(old - new) == len([n for n in new - old if "info" not in n])
    for name in old - new:
        assert name not in done.new.object_graph_def.concrete_functions


def test_keys_of_modules_five_levels_deep_stay():
    done = rewritten("nested", "level_5/kernel[:1]", "level_1/kernel")
    assert done.after.keys() == done.before.keys() | {"graphfreeze/variables/0/.ATTRIBUTES/VARIABLE_VALUE"}
    assert broken(done) == []


def test_slots_stay_with_their_variables():
    done = rewritten("slots", "dense/kernel[:2]")
    assert broken(done) == []
    assert done.after.keys() >= done.before.keys()


def test_new_variables_lie_in_both_object_graphs_alike():
    done = rewritten("mlp", "dense_0/kernel[:2]", "dense_1/kernel[[0], [0]]")
    graph, bundle_graph = done.new.object_graph_def, done.after.bundle_graph
    matched = match_nodes(graph, bundle_graph)
    added = [i for i, n in enumerate(graph.nodes) if n.variable.name.endswith(("/trainable", "/frozen"))]
    assert len(added) == 2
    for number in added:
        (attribute,) = bundle_graph.nodes[matched[number]].attributes
        assert attribute.full_name == graph.nodes[number].variable.name
        assert bundle_graph.nodes[matched[number]].has_checkpoint_values.value


def test_unnamed_and_private_variables_give_legal_names():
    def change(draft):
        """As of a module that keeps its unnamed variables under private names."""
        for graph in (draft.model.proto.meta_graphs[0].object_graph_def, draft.bundle_graph):
            for child in graph.nodes[0].children:
                child.local_name = (
                    f"_{child.local_name}" if child.local_name in ("first", "second") else child.local_name
                )

    done = rewritten("unnamed", "_first[:1]", "_second[[0], [0]]", change=change)
    names = [n.name for n in done.new.graph_def.node if "/graphfreeze/" in n.name]
    assert names == ["first/graphfreeze/trainable", "second/graphfreeze/frozen"]
    assert broken(done) == []


@pytest.mark.parametrize("strategy", ["auto", "mask"])
@pytest.mark.parametrize("name", OBJECT_MODELS)
def test_callers_wait_for_every_read(name, strategy):
    """What is left of a function once it is inlined are its control outputs: a caller's write waits for these."""
    frozen = {"scalars": "**", "norm_steps": "{kernel,gamma}[:1]"}.get(name, "**[:1]")
    done = rewritten(name, frozen, strategy=strategy, strict=strategy == "auto", allow_empty=True)
    waited = 0
    for function in done.new.graph_def.library.function:
        assert {*function.control_ret} == {*function.signature.control_output}
        if not function.control_ret:
            continue  # TensorFlow takes its ops for stateless, as it did in the source: nothing ever waited for them
        added = {n.name for n in function.node_def if ADDED in n.attr and n.op in READS}
        assert added <= _before(function, function.control_ret.values()), function.signature.name
        waited += len(added)
    assert waited


def _before(function, names):
    """These nodes and all that run before them."""
    inputs = {n.name: [producer(text) for text in n.input] for n in function.node_def}
    found, pending = set(), [*names]
    while pending:
        name = pending.pop()
        if name in inputs and name not in found:
            found.add(name)
            pending += inputs[name]
    return found
