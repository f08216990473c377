"""finalize, --unfreeze and the second rewrite on protos and bytes alone: no TensorFlow here."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graphfreeze
from graphfreeze.errors import InputOutputError, NoMatchError, UnsupportedModelError, UsageError
from graphfreeze.graph.attrs import bytes_attr
from graphfreeze.graph.trace import trace_meta_graph
from graphfreeze.passes.info import INFO_FUNCTION
from graphfreeze.passes.marks import read_marks
from graphfreeze.savedmodel import OBJECT_GRAPH_KEY, open_draft, read_saved_model
from graphfreeze.savedmodel.protos import TrackableObjectGraph
from tests.conftest import MODELS, OBJECT_MODELS
from tests.end_to_end.cases import CHOICES, FULL, KINDS, STRATEGIES, label, makes_sense, rewrite, weights_of
from tests.helpers.pairwise import everything, pairwise

FACTORS = {
    "fixture": [name for name in OBJECT_MODELS if weights_of(name)],
    "kind": tuple(KINDS),
    "strategy": STRATEGIES,
    "choice": CHOICES,
}
MEET = (("fixture", "kind"), ("fixture", "strategy"), ("kind", "strategy"))
CASES = everything(FACTORS, makes_sense) if FULL else pairwise(FACTORS, makes_sense, MEET)


def info_const(meta):
    (function,) = (f for f in meta.graph_def.library.function if f.signature.name == INFO_FUNCTION)
    return next(n for n in function.node_def if n.op == "Const").attr["value"].tensor


def saved_graph(meta):
    """The constant that holds the object graph which the save function writes."""
    for node in meta.graph_def.node:
        if node.op == "Const" and node.attr["dtype"].type == 7 and len(node.attr["value"].tensor.string_val) == 1:
            data = node.attr["value"].tensor.string_val[0]
            if len(data) > 40:
                return node.attr["value"].tensor
    return None


def contents(path, *, source=True):
    """All of a model as values that compare: messages, tensors by their bytes, other files."""
    model = read_saved_model(path)
    for meta in model.proto.meta_graphs:
        graph = saved_graph(meta)
        if graph is not None:
            parsed = TrackableObjectGraph.FromString(graph.string_val[0])
            graph.string_val[0] = parsed.SerializeToString(deterministic=True)
        if not source:
            const = info_const(meta)
            const.string_val[0] = json.dumps({**json.loads(const.string_val[0]), "source": ""}).encode()
    graph = TrackableObjectGraph.FromString(model.bundle.read_tensor(OBJECT_GRAPH_KEY).item())
    tensors = {k: model.bundle.read_bytes(k) for k in model.bundle.entries if k != OBJECT_GRAPH_KEY}
    files = {str(f): (path / f).read_bytes() for f in model.other_files() if f.name != "fingerprint.pb"}
    return model.proto, graph, tensors, files


def changed(path, out, change):
    """A copy with its draft edited."""
    draft = open_draft(path)
    change(draft)
    draft.write(out)
    return out


def tensor_keys(path):
    """Storage name -> checkpoint key, for the new variables of a rewritten model."""
    draft = open_draft(path)
    meta = draft.model.proto.meta_graphs[0]
    trace = trace_meta_graph(draft, meta)
    return {trace.variables[v].name: trace.variables[v].key for v in read_marks(draft, meta, trace).ours}


def trained(path, out, seed=0):
    """The same with other values in every trainable part, as if it had been trained; nothing else is saved again."""

    def change(draft):
        generator = np.random.default_rng(seed)
        for name, key in tensor_keys(path).items():
            if name.endswith("/trainable"):
                value = draft.tensor(key)
                draft.put[key] = generator.normal(size=value.shape).astype(value.dtype)

    return changed(path, out, change)


# Promise G5, untrained


@pytest.mark.parametrize("case", CASES, ids=label)
def test_an_untrained_result_is_the_original(case, tmp_path):
    plan = rewrite(case, tmp_path / "out")
    done = graphfreeze.finalize(tmp_path / "out", tmp_path / "plain")
    assert set(done.variables) == {v.name for v in plan.meta_graphs[0].variables if v.strategy}
    assert done.warnings == ()
    names = ("messages", "object graph", "tensors", "files")
    pairs = zip(names, contents(tmp_path / "plain"), contents(MODELS / case["fixture"]), strict=True)
    assert [name for name, found, expected in pairs if found != expected] == []


def test_values_are_the_effective_ones(tmp_path):
    graphfreeze.rewrite(MODELS / "mlp", tmp_path / "out", freeze=["dense_0/kernel[:2]"])
    key = tensor_keys(tmp_path / "out")["dense_0/kernel/graphfreeze/trainable"]
    trained(tmp_path / "out", tmp_path / "trained")
    part = open_draft(tmp_path / "trained").tensor(key)
    graphfreeze.finalize(tmp_path / "trained", tmp_path / "plain")
    base = weights_of("mlp")[0].key
    before, after = open_draft(MODELS / "mlp").tensor(base), open_draft(tmp_path / "plain").tensor(base)
    assert after.tobytes() == np.concatenate([before[:2], part]).tobytes()
    assert read_saved_model(tmp_path / "plain").bundle.header.num_shards == 1


@pytest.mark.parametrize("options", [{"strict": True}, {"strategy": "mask"}, {}])
def test_a_variable_that_nothing_reads(options, tmp_path):
    """No merge tells about it, info alone does: the same as a model whose merges say nothing."""

    source = MODELS / "mlp"
    variable = weights_of("mlp")[0]
    index = "" if "strict" in options else "[:1]"
    graphfreeze.rewrite(source, tmp_path / "out", freeze=[f"{variable.path}{index}"], **options)

    def without_facts(draft):
        for function in draft.model.proto.meta_graphs[0].graph_def.library.function:
            for node in function.node_def:
                node.attr.pop("_graphfreeze_fact", None)

    changed(tmp_path / "out", tmp_path / "bare", without_facts)
    done = graphfreeze.finalize(tmp_path / "bare", tmp_path / "plain")
    assert done.variables == (variable.name,)
    assert contents(tmp_path / "plain") == contents(source)


# --unfreeze


def test_unfreeze_lifts_some_and_keeps_the_others(tmp_path):
    out = tmp_path / "out"
    graphfreeze.rewrite(MODELS / "mlp", out, freeze=["dense_0/kernel[:2]", "dense_0/bias", "dense_1/kernel[:, :1]"])
    trained(out, tmp_path / "trained")
    done = graphfreeze.finalize(tmp_path / "trained", tmp_path / "part", unfreeze="dense_0/*")
    assert set(done.variables) == {"dense_0/kernel", "dense_0/bias"}
    held = graphfreeze.inspect(tmp_path / "part").meta_graphs[0].variables
    assert [v.name for v in held if "graphfreeze" in v.name] == ["dense_1/kernel/graphfreeze/trainable"]
    assert [flag(tmp_path / "part", name) for name in ("dense_0/bias", "dense_1/kernel")] == [True, False]
    # What is left comes off too, and nothing was lost on the way.
    graphfreeze.finalize(tmp_path / "part", tmp_path / "plain")
    graphfreeze.finalize(tmp_path / "trained", tmp_path / "expected")
    assert contents(tmp_path / "plain") == contents(tmp_path / "expected")


def test_unfreeze_keeps_each_variable_by_its_own_strategy(tmp_path):
    source = MODELS / "mlp"
    graphfreeze.rewrite(source, tmp_path / "a", freeze=["dense_0/kernel[:2]"], strategy="mask", copy="live")
    graphfreeze.rewrite(tmp_path / "a", tmp_path / "b", freeze=["dense_1/kernel[:2]", "dense_0/bias"], add=True)
    graphfreeze.finalize(tmp_path / "b", tmp_path / "part", unfreeze=["dense_0/bias"])
    draft = open_draft(tmp_path / "part")
    meta = draft.model.proto.meta_graphs[0]
    marks = read_marks(draft, meta, trace_meta_graph(draft, meta))
    held = {f.fact.name: (f.fact.strategy, f.fact.copy) for f in marks.frozen}
    assert held == {"dense_0/kernel": ("mask", "live"), "dense_1/kernel": ("split", None)}


def test_unfreeze_of_all_is_finalize(tmp_path):
    graphfreeze.rewrite(MODELS / "nested", tmp_path / "out", freeze=["**[:1]"])
    graphfreeze.finalize(tmp_path / "out", tmp_path / "plain", unfreeze="**")
    assert contents(tmp_path / "plain") == contents(MODELS / "nested")


def test_unfreeze_of_what_is_not_frozen(tmp_path):
    graphfreeze.rewrite(MODELS / "mlp", tmp_path / "out", freeze=["dense_0/kernel", "dense_0/bias"])
    with pytest.raises(NoMatchError) as error:
        graphfreeze.finalize(tmp_path / "out", tmp_path / "plain", unfreeze=["dense_1/*"])
    assert str(error.value) == ("No frozen variable matches 'dense_1/*'. Frozen are: 'dense_0/kernel', 'dense_0/bias'")
    assert not (tmp_path / "plain").exists()


def test_unfreeze_takes_no_index(tmp_path):
    graphfreeze.rewrite(MODELS / "mlp", tmp_path / "out", freeze=["dense_0/kernel"])
    with pytest.raises(UsageError, match=r"'dense_0/kernel\[0\]' has an index"):
        graphfreeze.finalize(tmp_path / "out", tmp_path / "plain", unfreeze=["dense_0/kernel[0]"])


# The second rewrite


def second_rewrites(source, first, second, tmp_path):
    """rewrite(X') and rewrite(finalize(X')), X' being trained."""
    graphfreeze.rewrite(source, tmp_path / "first", **first)
    trained(tmp_path / "first", tmp_path / "trained")
    graphfreeze.finalize(tmp_path / "trained", tmp_path / "plain")
    for name in ("trained", "plain"):
        graphfreeze.rewrite(tmp_path / name, tmp_path / f"{name} again", **second)
    return tmp_path / "trained again", tmp_path / "plain again"


@pytest.mark.parametrize(
    ("fixture", "first", "second"),
    [
        ("mlp", {"freeze": ["dense_0/**"]}, {"freeze": ["dense_1/kernel[:2]"]}),
        ("mlp", {"freeze": ["dense_0/kernel[:2]"]}, {"freeze": ["dense_0/kernel[1:]"]}),
        ("mlp", {"freeze": ["dense_0/kernel[:2]"]}, {"freeze": ["dense_0/kernel[:2]"], "strategy": "mask"}),
        ("loop", {"freeze": ["kernel[:1]"]}, {"freeze": ["kernel"], "strict": True}),
        ("embedding", {"freeze": ["embeddings[:3]"]}, {"freeze": ["embeddings[[1, 4, 5]]"]}),
        ("keras_lists", {"freeze": ["**[:1]"]}, {"freeze": ["**/kernel"]}),
        ("shared_function", {"freeze": ["a[:1]"]}, {"freeze": ["b[1:]"], "strategy": "mask"}),
    ],
)
def test_a_second_rewrite_replaces_the_first(fixture, first, second, tmp_path):
    found, expected = second_rewrites(MODELS / fixture, first, second, tmp_path)
    assert contents(found, source=False) == contents(expected, source=False)


def test_add_extends(tmp_path):
    graphfreeze.rewrite(MODELS / "mlp", tmp_path / "first", freeze=["dense_0/kernel[:2]"])
    trained(tmp_path / "first", tmp_path / "trained")
    plan = graphfreeze.rewrite(tmp_path / "trained", tmp_path / "more", freeze=["dense_0/kernel[3]"], add=True)
    (held,) = (v for v in plan.meta_graphs[0].variables if v.strategy)
    assert held.region.to_mask()[:, 0].tolist() == [True, True, False, True, False, False]
    graphfreeze.finalize(tmp_path / "trained", tmp_path / "expected")
    graphfreeze.finalize(tmp_path / "more", tmp_path / "plain")
    assert contents(tmp_path / "plain") == contents(tmp_path / "expected")


def test_add_leaves_what_it_does_not_extend_as_it_was_held(tmp_path):
    graphfreeze.rewrite(MODELS / "mlp", tmp_path / "a", freeze=["dense_0/bias"], strict=True)
    plan = graphfreeze.rewrite(tmp_path / "a", tmp_path / "b", freeze=["dense_1/bias"], add=True)
    assert {v.name: v.strict for v in plan.meta_graphs[0].variables if v.strategy} == {
        "dense_0/bias": True,
        "dense_1/bias": False,
    }
    plan = graphfreeze.plan(tmp_path / "a", freeze=["dense_1/bias"], add=True, strategy="mask")
    assert {v.name: v.strategy for v in plan.meta_graphs[0].variables if v.strategy} == {
        "dense_0/bias": "stop",
        "dense_1/bias": "stop",
    }


def test_what_was_turned_on_stays_on_with_add_and_off_without(tmp_path):
    source = changed(MODELS / "mlp", tmp_path / "source", lambda draft: turn_off(draft, "dense_1/kernel"))
    graphfreeze.rewrite(source, tmp_path / "a", train=["dense_1/kernel", "dense_0/**"], enable=True)
    graphfreeze.rewrite(tmp_path / "a", tmp_path / "b", freeze=["dense_0/kernel[:1]"], add=True)
    graphfreeze.rewrite(tmp_path / "a", tmp_path / "c", freeze=["dense_0/kernel[:1]"])
    assert [flag(tmp_path / name, "dense_1/kernel") for name in "abc"] == [True, True, False]
    for name in "abc":
        graphfreeze.finalize(tmp_path / name, tmp_path / f"{name} plain")
        assert contents(tmp_path / f"{name} plain") == contents(source)


def turn_off(draft, name):
    for node in draft.model.proto.meta_graphs[0].object_graph_def.nodes:
        if node.variable.name == name:
            node.variable.trainable = False


def flag(path, name):
    nodes = read_saved_model(path).proto.meta_graphs[0].object_graph_def.nodes
    return next(n.variable.trainable for n in nodes if n.variable.name == name)


# Linked weights


def test_linked_weights_keep_the_bytes_of_what_is_taken_out(tmp_path):
    graphfreeze.rewrite(MODELS / "mlp", tmp_path / "a", freeze=["dense_0/kernel[:2]"])
    done = graphfreeze.finalize(tmp_path / "a", tmp_path / "plain", weights="link")
    (warning,) = done.warnings
    assert warning == (
        "the linked weights still hold the bytes of tensors that were taken out; no reader sees them. Use --weights "
        "copy to write the weights without them"
    )
    assert contents(tmp_path / "plain") == contents(MODELS / "mlp")
    shard = "variables/variables.data-0000{}-of-0000{}"
    assert (tmp_path / "plain" / shard.format(0, 3)).samefile(tmp_path / "a" / shard.format(0, 2))


def test_a_second_rewrite_with_linked_weights(tmp_path):
    graphfreeze.rewrite(MODELS / "mlp", tmp_path / "a", freeze=["dense_0/kernel[:2]"])
    plan = graphfreeze.rewrite(tmp_path / "a", tmp_path / "b", freeze=["dense_0/kernel[1:]"], weights="link")
    assert any("linked weights" in warning for warning in plan.warnings)
    graphfreeze.finalize(tmp_path / "b", tmp_path / "plain")
    assert contents(tmp_path / "plain") == contents(MODELS / "mlp")


# What cannot be taken off


def test_a_model_without_a_freeze(tmp_path):
    with pytest.raises(UsageError, match="carries no freeze: graphfreeze finds none of its marks there"):
        graphfreeze.finalize(MODELS / "mlp", tmp_path / "plain")


def edit_facts(change):
    def edit(draft):
        meta = draft.model.proto.meta_graphs[0]
        for function in meta.graph_def.library.function:
            for node in function.node_def:
                if "_graphfreeze_fact" in node.attr:
                    fact = json.loads(node.attr["_graphfreeze_fact"].s)
                    change(fact)
                    node.attr["_graphfreeze_fact"].CopyFrom(bytes_attr(json.dumps(fact)))

    return edit


def edit_info(change):
    def edit(draft):
        const = info_const(draft.model.proto.meta_graphs[0])
        info = json.loads(const.string_val[0])
        change(info)
        const.string_val[0] = json.dumps(info).encode()

    return edit


@pytest.mark.parametrize("edit", [edit_facts(lambda f: f.update(format=2)), edit_info(lambda i: i.update(format=2))])
def test_marks_of_a_newer_version(edit, tmp_path):
    graphfreeze.rewrite(MODELS / "mlp", tmp_path / "out", freeze=["dense_0/kernel[:2]"])
    changed(tmp_path / "out", tmp_path / "newer", edit)
    with pytest.raises(UnsupportedModelError) as error:
        graphfreeze.finalize(tmp_path / "newer", tmp_path / "plain")
    assert str(error.value) == (
        "The model was rewritten by a newer graphfreeze: its format is 2, this version reads up to 1. Upgrade with: "
        "pip install --upgrade graphfreeze"
    )


def test_info_that_says_nothing(tmp_path):
    def edit(draft):
        info_const(draft.model.proto.meta_graphs[0]).string_val[0] = b"{"

    graphfreeze.rewrite(MODELS / "mlp", tmp_path / "out", freeze=["dense_0/kernel[:2]"])
    changed(tmp_path / "out", tmp_path / "damaged", edit)
    with pytest.raises(UnsupportedModelError, match="should say what graphfreeze did to this model and does not"):
        graphfreeze.finalize(tmp_path / "damaged", tmp_path / "plain")


def test_a_storage_that_was_renamed_away(tmp_path):
    def rename(fact):
        fact["held"][0]["name"] = "gone/graphfreeze/trainable"

    graphfreeze.rewrite(MODELS / "mlp", tmp_path / "out", freeze=["dense_0/kernel[:2]"])
    changed(tmp_path / "out", tmp_path / "damaged", edit_facts(rename))
    with pytest.raises(UnsupportedModelError) as error:
        graphfreeze.finalize(tmp_path / "damaged", tmp_path / "plain")
    assert str(error.value) == (
        "Variable 'gone/graphfreeze/trainable', which holds a part of 'dense_0/kernel', is missing from the model, so "
        "its values cannot be put back together. Finalize the model before another tool drops it"
    )


@pytest.mark.parametrize("which", ["storage", "base"])
def test_a_value_that_is_missing_from_the_checkpoint(which, tmp_path):
    graphfreeze.rewrite(MODELS / "mlp", tmp_path / "out", freeze=["dense_0/kernel[:2]"])
    key = weights_of("mlp")[0].key
    if which == "storage":
        key = tensor_keys(tmp_path / "out")["dense_0/kernel/graphfreeze/trainable"]
    changed(tmp_path / "out", tmp_path / "damaged", lambda draft: draft.drop.add(key))
    with pytest.raises(InputOutputError, match="holds no value under key") as error:
        graphfreeze.finalize(tmp_path / "damaged", tmp_path / "plain")
    assert key in str(error.value)
    assert "'dense_0/kernel'" in str(error.value)


def test_a_storage_of_another_shape(tmp_path):
    graphfreeze.rewrite(MODELS / "mlp", tmp_path / "out", freeze=["dense_0/kernel[:2]"])
    key = tensor_keys(tmp_path / "out")["dense_0/kernel/graphfreeze/trainable"]
    changed(tmp_path / "out", tmp_path / "damaged", lambda draft: draft.put.update({key: np.zeros((1, 1), np.float32)}))
    with pytest.raises(UnsupportedModelError, match=r"should have shape \[4, \d+\], found \[1, 1\]"):
        graphfreeze.finalize(tmp_path / "damaged", tmp_path / "plain")


def test_a_node_of_the_users_that_uses_a_storage(tmp_path):
    def edit(draft):
        for function in draft.model.proto.meta_graphs[0].graph_def.library.function:
            for argument in function.signature.input_arg:
                if argument.name == "graphfreeze_0" and "__call__" in function.signature.name:
                    node = function.node_def.add(name="mine", op="ReadVariableOp", input=[argument.name])
                    node.attr["dtype"].type = 1

    graphfreeze.rewrite(MODELS / "mlp", tmp_path / "out", freeze=["dense_0/kernel[:2]"])
    changed(tmp_path / "out", tmp_path / "mine", edit)
    with pytest.raises(UnsupportedModelError) as error:
        graphfreeze.finalize(tmp_path / "mine", tmp_path / "plain")
    assert "Node 'mine' (ReadVariableOp) in function '__inference" in str(error.value)
    assert "uses 'graphfreeze_0', which graphfreeze added and has to take out" in str(error.value)


# Promise G7


def test_no_tensorflow_is_started(tmp_path):
    graphfreeze.rewrite(MODELS / "keras_gru", tmp_path / "out", freeze=["**[:1]"])
    code = f"""
import graphfreeze
graphfreeze.finalize({str(tmp_path / "out")!r}, {str(tmp_path / "plain")!r})
graphfreeze.rewrite({str(tmp_path / "out")!r}, {str(tmp_path / "again")!r}, freeze="**", strict=True, allow_empty=True)
maps = open("/proc/self/maps").read()
assert "libtensorflow" not in maps and "_pywrap_tensorflow" not in maps, "TensorFlow was started"
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
