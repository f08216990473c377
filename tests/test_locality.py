"""Promise G6: what the spec does not touch stays as it is, unknown fields included."""

import errno
import os
import shutil
import stat

import numpy as np
import pytest

import graphfreeze
from graphfreeze.errors import InputOutputError, UsageError
from graphfreeze.graph.ops import CALLS
from graphfreeze.savedmodel import OBJECT_GRAPH_KEY, open_draft, read_bundle, read_saved_model, write_bundle
from graphfreeze.savedmodel.protos import MetaGraphDef
from tests.helpers.compare import proto_diff
from tests.helpers.finalized import finalized_differences
from tests.passes.rewriting import node_of

UNKNOWN = b"\xba\x3e\x03abc"
"""Field 999 of three bytes, which no message of TensorFlow 2.21 knows."""


@pytest.fixture
def source(fixture_copy):
    """A fixture with more files and an empty folder beside it."""
    path = fixture_copy("strings")
    (path / "assets").mkdir(exist_ok=True)
    (path / "assets" / "more.bin").write_bytes(bytes(range(256)))
    (path / "assets.extra" / "deep").mkdir(parents=True)
    (path / "assets.extra" / "deep" / "note.txt").write_text("kept")
    (path / "assets.extra" / "nothing").mkdir()
    (path / "requests.jsonl").write_text("{}\n")
    return path


def first_weight(path):
    """Some rows of the last weight that is not written and has rows."""
    variables = graphfreeze.inspect(path).meta_graphs[0].variables
    found = [v for v in variables if v.kind == "weight" and not v.writes and v.shape and v.shape[0] > 1]
    return f"{found[-1].path}[:1]"


def files(path):
    return {
        str(f.relative_to(path)): f.read_bytes()
        for f in sorted(path.rglob("*"))
        if f.is_file()
        and f.parts[len(path.parts)] != "variables"
        and f.name not in ("saved_model.pb", "fingerprint.pb")
    }


def tensors(path):
    bundle = read_saved_model(path).bundle
    return {key: (e.dtype, str(e.shape), bundle.read_bytes(key)) for key, e in bundle.entries.items()}


def test_files_stay_and_the_stale_fingerprint_goes(source, tmp_path):
    graphfreeze.rewrite(source, tmp_path / "out", freeze=first_weight(source))
    assert files(tmp_path / "out") == files(source)
    assert len(files(source)) == 4
    assert (tmp_path / "out" / "assets.extra" / "nothing").is_dir()
    assert (source / "fingerprint.pb").is_file()
    assert not (tmp_path / "out" / "fingerprint.pb").exists()


@pytest.mark.parametrize("name", ["embedding", "dtypes", "keras_embedding", "slots", "strings"])
def test_every_tensor_of_the_source_stays(fixture_model, tmp_path, name):
    path = fixture_model(name)
    graphfreeze.rewrite(path, tmp_path / "out", freeze=first_weight(path))
    before, after = tensors(path), tensors(tmp_path / "out")
    assert {k: v for k, v in after.items() if k in before and k != OBJECT_GRAPH_KEY} == {
        k: v for k, v in before.items() if k != OBJECT_GRAPH_KEY
    }
    assert all(k.startswith("graphfreeze/") for k in after.keys() - before.keys())


def test_the_source_is_not_changed(source, tmp_path):
    before = {f: (f.read_bytes(), f.stat().st_mtime_ns) for f in sorted(source.rglob("*")) if f.is_file()}
    graphfreeze.rewrite(source, tmp_path / "out", freeze=first_weight(source))
    assert {f: (f.read_bytes(), f.stat().st_mtime_ns) for f in sorted(source.rglob("*")) if f.is_file()} == before


# Messages


def with_unknown_fields(path):
    """Puts an unknown field into every message that a rewrite might copy."""
    model = read_saved_model(path)
    model.proto.MergeFromString(UNKNOWN)
    for meta in model.proto.meta_graphs:
        graph, objects = meta.graph_def, meta.object_graph_def
        bodies = [graph.node, *(f.node_def for f in graph.library.function)]
        for message in (
            *(meta, graph, graph.library, objects, meta.meta_info_def, meta.saver_def),
            *graph.library.function,
            *(f.signature for f in graph.library.function),
            *(node for body in bodies for node in body),
            *objects.nodes,
            *(n.variable for n in objects.nodes if n.WhichOneof("kind") == "variable"),
            *objects.concrete_functions.values(),
            *meta.signature_def.values(),
        ):
            message.MergeFromString(UNKNOWN)
    (path / "saved_model.pb").write_bytes(model.proto.SerializeToString())
    return path


def meta_graph(path, number=0):
    return read_saved_model(path).proto.meta_graphs[number]


def by_name(items, key=lambda item: item.name):
    return {key(item): item for item in items}


def assert_equal_messages(actual, expected):
    assert proto_diff(actual, expected) == []


def assert_untouched(before, after, frozen):
    """All of a meta graph but changed functions, their callers, the saver, and what is said of frozen variables."""
    for field in ("meta_info_def", "saver_def"):
        assert_equal_messages(getattr(after, field), getattr(before, field))
    for field in ("signature_def", "collection_def"):
        assert set(getattr(after, field)) == set(getattr(before, field))
        for key, value in getattr(before, field).items():
            assert_equal_messages(getattr(after, field)[key], value)
    assert list(after.asset_file_def) == list(before.asset_file_def)
    old, new = (by_name(m.graph_def.library.function, lambda f: f.signature.name) for m in (before, after))
    for name in old.keys() & new.keys():
        assert_equal_messages(new[name], old[name])
    assert_nodes(before, after, old.keys() - new.keys())
    assert_objects(before, after, frozen)


def assert_nodes(before, after, gone):
    """Nodes of the main graph: only the calls of changed functions and the saver's constant differ."""
    old, new = by_name(before.graph_def.node), by_name(after.graph_def.node)
    assert old.keys() <= new.keys()
    assert {new[n].op for n in new.keys() - old.keys()} <= {"VarHandleOp"}
    for name, node in old.items():
        if node.op in CALLS and node.attr["f"].func.name in gone:
            assert list(new[name].input)[: len(node.input)] == list(node.input)
        elif proto_diff(new[name], node):
            assert (node.op, node.attr["dtype"].type) == ("Const", 7)


def assert_objects(before, after, frozen):
    old, new = before.object_graph_def, after.object_graph_def
    number = node_of(before, frozen.split("[")[0])
    for i, node in enumerate(old.nodes):
        if node.WhichOneof("kind") in ("function", "bare_concrete_function") or i in (0, number):
            assert_equal_messages(
                type(node)(children=new.nodes[i].children[: len(node.children)]), type(node)(children=node.children)
            )
        else:
            assert_equal_messages(new.nodes[i], node)
    for name in old.concrete_functions.keys() & new.concrete_functions.keys():
        assert_equal_messages(new.concrete_functions[name], old.concrete_functions[name])


@pytest.mark.parametrize(
    "name", ["embedding", "strings", "shared_function", "scan", "statistics", "layer_norm_transformer"]
)
def test_messages_stay_with_unknown_fields(fixture_copy, tmp_path, name):
    source = with_unknown_fields(fixture_copy(name))
    chosen = first_weight(source)
    graphfreeze.rewrite(source, tmp_path / "out", freeze=chosen, allow_empty=True)
    assert_untouched(meta_graph(source), meta_graph(tmp_path / "out"), chosen)
    # Changed functions are made from the old ones, so nothing is lost there either.
    for function in meta_graph(tmp_path / "out").graph_def.library.function:
        if any("_graphfreeze_function" in node.attr for node in function.node_def):
            assert UNKNOWN in function.SerializeToString()
    graphfreeze.finalize(tmp_path / "out", tmp_path / "plain")
    assert finalized_differences(tmp_path / "plain", source) == []


# Other meta graphs


def with_second_meta_graph(path, *, bare=False):
    """A copy under the tag 'other', or a meta graph without variables."""
    model = read_saved_model(path)
    other = MetaGraphDef()
    if not bare:
        other.CopyFrom(model.proto.meta_graphs[0])
    else:
        other.graph_def.node.add(name="x", op="Placeholder").MergeFromString(UNKNOWN)
    other.meta_info_def.tags[:] = ["other"]
    other.MergeFromString(UNKNOWN)
    model.proto.meta_graphs.append(other)
    (path / "saved_model.pb").write_bytes(model.proto.SerializeToString())
    return path


@pytest.mark.parametrize("bare", [False, True])
def test_another_meta_graph_stays(fixture_copy, tmp_path, bare):
    source = with_second_meta_graph(fixture_copy("embedding"), bare=bare)
    chosen = "dense/kernel" if not bare else "dense/kernel[:3]"
    graphfreeze.rewrite(source, tmp_path / "out", freeze=chosen, tags=["serve"])
    assert_equal_messages(meta_graph(tmp_path / "out", 1), meta_graph(source, 1))
    assert proto_diff(meta_graph(tmp_path / "out"), meta_graph(source))
    graphfreeze.finalize(tmp_path / "out", tmp_path / "plain")
    assert finalized_differences(tmp_path / "plain", source) == []


def test_a_meta_graph_that_reads_what_moves_cannot_be_left_out(fixture_copy, tmp_path):
    source = with_second_meta_graph(fixture_copy("embedding"))
    with pytest.raises(UsageError, match="'other'"):
        graphfreeze.rewrite(source, tmp_path / "out", freeze="dense/kernel[:3]", tags=["serve"])
    assert not (tmp_path / "out").exists()


# Weights


def shards(path):
    return sorted((path / "variables").glob("variables.data-*"))


def with_several_shards(path):
    """The same model with its checkpoint in three shards."""
    for key in sorted(tensors(path))[1:3]:
        source = read_bundle(path / "variables" / "variables")
        (path / "new").mkdir()
        write_bundle(path / "new" / "variables", source=source, put={key: np.asarray(source.read_tensor(key))})
        shutil.rmtree(path / "variables")
        (path / "new").rename(path / "variables")
    return path


@pytest.mark.parametrize("weights", ["copy", "link"])
def test_shards_stay_and_one_is_added(fixture_copy, tmp_path, weights):
    source = with_several_shards(fixture_copy("embedding"))
    assert len(shards(source)) == 3
    graphfreeze.rewrite(source, tmp_path / "out", freeze="emb/embeddings[:5]", weights=weights)
    after = shards(tmp_path / "out")
    assert [f.name for f in after] == [f"variables.data-0000{i}-of-00004" for i in range(4)]
    for old, new in zip(shards(source), after[:3], strict=True):
        assert new.read_bytes() == old.read_bytes()
        assert (new.stat().st_ino == old.stat().st_ino) == (weights == "link")
        assert bool(stat.S_IMODE(new.stat().st_mode) & 0o222) == (weights == "copy")
    assert after[3].stat().st_size > 0


def test_a_whole_variable_costs_no_shard(fixture_model, tmp_path):
    source = fixture_model("embedding")
    graphfreeze.rewrite(source, tmp_path / "out", freeze="emb/embeddings")
    (shard,) = shards(tmp_path / "out")[:1]
    assert shard.read_bytes() == shards(source)[0].read_bytes()
    moved = tensors(tmp_path / "out").items() ^ tensors(source).items()
    assert {key for key, _ in moved} <= {OBJECT_GRAPH_KEY}


def test_links_across_devices_are_an_error(fixture_copy, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    source = fixture_copy("embedding")
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(InputOutputError, match="cannot link") as caught:
        graphfreeze.rewrite(source, tmp_path / "out", freeze="emb/embeddings", weights="link")
    assert "file system" in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert shards(source)[0].stat().st_mode & 0o200


# A variable that nothing reads


@pytest.mark.parametrize("chosen", ["template", "template[:1]"])
def test_a_variable_that_nobody_reads(fixture_model, tmp_path, chosen):
    source = fixture_model("shapes")
    plan = graphfreeze.rewrite(source, tmp_path / "out", freeze=chosen)
    before, after = meta_graph(source), meta_graph(tmp_path / "out")
    frozen = next(v for v in plan.meta_graphs[0].variables if v.strategy)
    assert {r.access for r in frozen.reads} == {"shape"}
    old, new = (by_name(m.graph_def.library.function, lambda f: f.signature.name) for m in (before, after))
    gone = [name for name in old if name not in new]
    assert all("traced" in name for name in gone), gone
    assert not after.object_graph_def.nodes[node_of(before, "template")].variable.trainable
    assert_untouched(before, after, chosen)
    graphfreeze.finalize(tmp_path / "out", tmp_path / "plain")
    assert finalized_differences(tmp_path / "plain", source) == []


def test_a_draft_that_changes_nothing_is_written_as_it_was(fixture_model, tmp_path):
    source = fixture_model("keras_embedding")
    open_draft(source).write(tmp_path / "out")
    assert finalized_differences(tmp_path / "out", source) == []
    assert [f.name for f in shards(tmp_path / "out")] == [f.name for f in shards(source)]
