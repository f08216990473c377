"""TF1 graphs in a Session: every tensor by name, training by new optimizers, saving again, and the way back."""

import json
import shutil

import numpy as np
import pytest

import graphfreeze
from graphfreeze.errors import UnsupportedModelError, UsageError
from graphfreeze.planning.plan import Storage
from graphfreeze.savedmodel import read_saved_model
from tests.conftest import MODELS
from tests.end_to_end.tf1_models import HELD, KINDS, OPTIONS, combined, rewritten
from tests.helpers.compare import assert_bits_equal, assert_within_eps
from tests.helpers.finalized import finalized_differences

pytestmark = pytest.mark.tf


@combined([*OPTIONS, "strict"])
def test_every_tensor_by_name(name, kind, how, tmp_path):
    from tests.helpers.sessions import check_fetches

    if how == "strict":
        wholes = [f.split("[")[0] for f in HELD[name]]
        original, out, plan = rewritten(name, kind, tmp_path, wholes, strict=True)
    else:
        original, out, plan = rewritten(name, kind, tmp_path, **OPTIONS[how])
    assert check_fetches(original, out, plan) >= len({v.key for v in plan.meta_graphs[0].variables if v.strategy})
    graphfreeze.finalize(out, tmp_path / "plain")
    assert finalized_differences(tmp_path / "plain", original) == []


def test_the_kinds_stay_what_they_are(tmp_path):
    for kind, op in (("ref", "VariableV2"), ("resource", "VarHandleOp")):
        (tmp_path / kind).mkdir()
        _, out, _ = rewritten("two_by_two", kind, tmp_path / kind)
        nodes = {n.name: n.op for n in read_saved_model(out).proto.meta_graphs[0].graph_def.node}
        assert nodes["x/graphfreeze/frozen"] == op


@combined(OPTIONS)
def test_gradients(name, kind, how, tmp_path):
    """G2: bit for bit where it trains, nothing elsewhere, sparse where it was sparse."""
    from tests.helpers.sessions import Model, dense, gradients_of, is_sparse

    original, out, plan = rewritten(name, kind, tmp_path, **OPTIONS[how])
    meta = plan.meta_graphs[0]
    with Model(original, meta.tags) as plain:
        expected = gradients_of(plain)
    with Model(out, meta.tags) as held:
        found = gradients_of(held)
    lost = 0
    # The order in which TensorFlow adds the gradients of several reads is its own.
    same = assert_within_eps if name in ("control", "partitioned") else assert_bits_equal
    for variable in meta.variables:
        gradient = expected[variable.name]
        if variable.region is not None:
            lost += np.count_nonzero(variable.region.take(dense(gradient)))
        for atom in variable.atoms:
            if not atom.trainable:
                assert atom.storage is Storage.BASE or atom.name not in found
                continue
            actual = found[atom.name or variable.name]
            assert is_sparse(actual) == is_sparse(gradient)
            actual = dense(actual)
            if atom.storage is Storage.BASE:
                assert not variable.region.take(actual).any()
                actual = atom.region.take(actual)
            same(actual, atom.region.take(dense(gradient)), variable.name)
    assert lost > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", HELD)
def test_initialisers_give_the_same_model(name, kind, tmp_path):
    import tensorflow as tf

    from tests.helpers.sessions import Model, effective

    original, out, plan = rewritten(name, kind, tmp_path)
    meta = plan.meta_graphs[0]
    with Model(original, meta.tags) as plain:
        expected = {v.name: plain.variable(v.name) for v in meta.variables}
    for run in (tf.compat.v1.global_variables_initializer, None):
        with Model(out, meta.tags) as held:
            for variable in meta.variables:
                for node in (variable.name, *(a.name for a in variable.atoms if a.name)):
                    held.assign(node, np.zeros_like(held.variable(node)))
            init = "init" if run is None else run().name
            held.run(init)
            for variable in meta.variables:
                assert_bits_equal(effective(held, variable), expected[variable.name], variable.name)


@pytest.mark.parametrize("name", [n for n in HELD if n != "control"])
def test_loaded_without_a_session(name, tmp_path):
    """`tf.saved_model.load` and `prune`: resource variables are visible, by flag, and train.

    Through TF1 loops no gradient comes back that way, in a model that was not rewritten either.
    """
    import tensorflow as tf

    from tests.helpers.sessions import loss_of

    original, out, plan = rewritten(name, "resource", tmp_path)
    meta = plan.meta_graphs[0]
    loaded = tf.saved_model.load(str(out), tags=list(meta.tags))
    feeds, loss = loss_of(read_saved_model(original).proto.meta_graphs[0])
    function = loaded.prune(list(feeds), loss)
    by_name = {v.name.removesuffix(":0"): v for v in loaded.variables}
    names = {a.name or v.name for v in meta.variables for a in v.atoms if a.trainable}
    names |= {v.name for v in meta.variables if v.strategy is None}
    trainable = [v for v in loaded.variables if v.trainable]
    assert {v.name.removesuffix(":0") for v in trainable} == names
    before = {name: v.numpy() for name, v in by_name.items()}
    optimizer = tf.keras.optimizers.SGD(0.05, momentum=0.9)
    for _ in range(3):
        with tf.GradientTape() as tape:
            value = function(*(tf.constant(f) for f in feeds.values()))
        optimizer.apply_gradients(zip(tape.gradient(value, trainable), trainable, strict=True))
    for variable in meta.variables:
        for atom in variable.atoms:
            if atom.trainable:
                continue
            now, then = (source[atom.name or variable.name] for source in (by_name, before))
            now = now.numpy()
            if atom.storage is Storage.BASE:
                now, then = atom.region.take(now), atom.region.take(then)
            assert_bits_equal(now, then, variable.name)
    assert any(np.any(by_name[n].numpy() != before[n]) for n in names)


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_that_was_exported_twice_has_two_savers(kind, tmp_path):
    """Every saver of the graph restores everything, whichever of them is asked."""
    from tests.helpers.sessions import Model, effective, export

    with Model(MODELS / f"tf1_two_by_two_{kind}") as model:
        export(model, tmp_path / "twice", ["serve"])
    plan = graphfreeze.rewrite(tmp_path / "twice", tmp_path / "out", freeze="x[:1]")
    (x,) = plan.meta_graphs[0].variables
    with Model(tmp_path / "out") as held:
        expected = effective(held, x)
        restores = [op for op in held.graph.get_operations() if op.type == "RestoreV2" and "graphfreeze" not in op.name]
        assert len(restores) == 2
        for saver, restore in zip(("", "_1"), restores, strict=True):
            for node in ("x", x.atoms[1].name):
                held.assign(node, np.zeros_like(held.variable(node)))
            prefix = str(tmp_path / "out" / "variables" / "variables")
            held.run(f"save/restore_all{saver}", {restore.inputs[0]: prefix})
            assert_bits_equal(effective(held, x), expected)
    graphfreeze.finalize(tmp_path / "out", tmp_path / "plain")
    assert finalized_differences(tmp_path / "plain", tmp_path / "twice") == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_initial_value_is_not_merged(kind, tmp_path):
    """A variable that starts as another one does reads what is stored, while nothing has its value yet."""
    import tensorflow as tf

    from tests.helpers.sessions import Model, export

    tf1 = tf.compat.v1
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        x = tf1.get_variable("x", initializer=tf.constant([[1.0, 2.0], [3.0, 4.0]]), use_resource=kind == "resource")
        with tf1.control_dependencies(None):
            start = tf.identity(x.read_value() if kind == "resource" else x._ref(), name="start")
        tf1.get_variable("y", initializer=2.0 * start, use_resource=kind == "resource")
        tf.reduce_sum(x * x, name="loss")
        session.run("x/Assign")
        session.run("y/Assign")
        model = Model.__new__(Model)
        model.graph, model.session, model.prefix = graph, session, ""
        model.meta = tf1.MetaGraphDef()
        export(model, tmp_path / "model", ["serve"])
    graphfreeze.rewrite(tmp_path / "model", tmp_path / "out", freeze="x[0]")
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.import_meta_graph(read_saved_model(tmp_path / "out").proto.meta_graphs[0])
        session.run("x/Assign")
        session.run("y/Assign")  # the part of x has no value yet
        y = "y:0" if kind == "ref" else "y/Read/ReadVariableOp:0"
        assert np.array_equal(session.run(y), [[2.0, 4.0], [6.0, 8.0]])


@pytest.mark.parametrize("kind", KINDS)
def test_enable_puts_a_variable_into_the_collections(kind, tmp_path):
    import tensorflow as tf

    from tests.helpers.sessions import Model

    source = tmp_path / "held"
    shutil.copytree(MODELS / f"tf1_layers_{kind}", source)
    model = read_saved_model(source).proto
    for meta in model.meta_graphs:
        entries = meta.collection_def["trainable_variables"].bytes_list.value
        entries[:] = [e for e in entries if b"fc1/weights" not in e]
    (source / "saved_model.pb").write_bytes(model.SerializeToString())
    out = tmp_path / "out"
    plan = graphfreeze.rewrite(source, out, train="fc1/weights[2:]", enable=True)
    assert trainable_names(out)[-1] == "fc1/weights/graphfreeze/trainable"
    assert plan.meta_graphs[0].variables[0].enabled
    with Model(out, ["train"]):
        assert "fc1/weights/graphfreeze/trainable" in [v.op.name for v in tf.compat.v1.trainable_variables()]
    graphfreeze.finalize(out, tmp_path / "plain")
    assert finalized_differences(tmp_path / "plain", source) == []


def trainable_names(path):
    from graphfreeze.savedmodel.protos import VariableDef

    collection = read_saved_model(path).proto.meta_graphs[0].collection_def["trainable_variables"]
    return [VariableDef.FromString(v).variable_name.removesuffix(":0") for v in collection.bytes_list.value]


@pytest.mark.parametrize("kind", KINDS)
def test_live_follows_the_variable(kind, tmp_path):
    from tests.helpers.sessions import Model

    for copy, moves in (("live", True), ("snapshot", False)):
        (tmp_path / copy).mkdir()
        _, out, _ = rewritten("two_by_two", kind, tmp_path / copy, strategy="mask", copy=copy)
        with Model(out) as held:
            read = "x/read:0" if kind == "ref" else "x/Read/ReadVariableOp:0"
            before = held.run(read)
            held.assign("x", before + 1)
            after = held.run(read)
            mask = np.array([[False, True], [True, False]])
            assert np.array_equal(after[~mask], before[~mask] + 1)
            assert np.array_equal(after[mask], before[mask] + moves)


@pytest.mark.parametrize("kind", KINDS)
def test_inspect_shows_what_is_held(kind, tmp_path):
    _, out, plan = rewritten("layers", kind, tmp_path)
    seen = graphfreeze.inspect(out)
    for before, after in zip(plan.meta_graphs, seen.meta_graphs, strict=True):
        held = {v.name: (v.frozen, v.strategy) for v in before.variables if v.strategy}
        assert held == {v.name: (v.frozen, v.strategy) for v in after.variables if v.strategy}
    assert all(m.training.trains for m in seen.meta_graphs)
    assert all(("trains only in a Session" in m.training.why) == (kind == "ref") for m in seen.meta_graphs)


@pytest.mark.parametrize("kind", KINDS)
def test_meta_graphs_share_their_weights(kind, tmp_path):
    path = MODELS / f"tf1_layers_{kind}"
    with pytest.raises(UsageError, match=r"--tags leaves it out"):
        graphfreeze.rewrite(path, tmp_path / "out", freeze="fc1/weights[:1]", tags=["train"])
    plan = graphfreeze.rewrite(path, tmp_path / "one", freeze="fc1/weights", tags=["train"])
    assert [list(m.tags) for m in plan.meta_graphs] == [["train"]]
    changed, source = (read_saved_model(p).proto.meta_graphs for p in (tmp_path / "one", path))
    assert changed[1] == source[1]
    assert changed[0] != source[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_rewrite_replaces_or_extends(kind, tmp_path):
    path = MODELS / f"tf1_partitioned_{kind}"
    graphfreeze.rewrite(path, tmp_path / "a", freeze="table[:2]")
    graphfreeze.rewrite(tmp_path / "a", tmp_path / "b", freeze="table[5]")
    graphfreeze.rewrite(path, tmp_path / "c", freeze="table[5]")
    again, once = (read_saved_model(tmp_path / name).proto.meta_graphs[0] for name in "bc")
    assert [n for n in again.graph_def.node if n.name != "graphfreeze/info"] == [
        n for n in once.graph_def.node if n.name != "graphfreeze/info"
    ]
    plan = graphfreeze.rewrite(tmp_path / "a", tmp_path / "d", freeze="table[5]", add=True)
    assert sum(v.frozen for v in plan.meta_graphs[0].variables) == 12


def test_what_is_for_object_graphs_only_says_so(tmp_path):
    original, out, _ = rewritten("two_by_two", "ref", tmp_path)
    with pytest.raises(UnsupportedModelError, match="is a TF1 graph, which trains in a Session"):
        graphfreeze.verify(original, out)
    with pytest.raises(UnsupportedModelError, match="is a TF1 graph, whose training checkpoints"):
        graphfreeze.checkpoint(out / "variables" / "variables", tmp_path / "ck", from_=out)


def test_json_of_a_plan_names_the_whole(tmp_path):
    _, _, plan = rewritten("partitioned", "ref", tmp_path)
    told = json.loads(json.dumps(plan.to_dict()))["meta_graphs"][0]["variables"]
    assert [(v["name"], v["part_of"]) for v in told] == [(f"table/part_{i}", "table") for i in range(3)]
    assert type(plan).from_dict(plan.to_dict()) == plan
