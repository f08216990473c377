"""Train ops in TF1 graphs do what a TF1 program with `minimize(loss, var_list)` does."""

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import graphfreeze
from graphfreeze.errors import UsageError
from tests.conftest import MODELS
from tests.helpers.compare import assert_bits_equal, assert_within_eps
from tests.helpers.sessions import Model
from tests.helpers.stepping import Job, batch, run_jobs

pytestmark = pytest.mark.tf
tf1 = tf.compat.v1
A = {"a": ("float32", [6, 2], 0)}
SLIM = {"inputs": ("float32", [6, 6], 0), "targets": ("float32", [6, 3], 0)}
KINDS = ("ref", "resource") if os.environ.get("GRAPHFREEZE_FULL") == "1" else ("ref",)
LAYERS = ("fc1", "fc2", "fc3")


def three_layers(path):
    """A network of three layers with seeded weights, to be trained on its output, without a loss of its own."""
    generator = np.random.default_rng(3)
    with tf.Graph().as_default(), tf1.Session() as session:
        inputs = tf1.placeholder(tf.float32, [None, 6], name="inputs")
        x = inputs
        for name, units in zip(LAYERS, (5, 4, 3), strict=True):
            first = [generator.standard_normal(s).astype(np.float32) for s in ([x.shape[1], units], [units])]
            kernel, bias = (tf1.get_variable(f"{name}/{n}", initializer=v) for n, v in zip("wb", first, strict=True))
            x = tf.add(tf.matmul(x, kernel), bias, name=f"{name}/out")
            x = tf.nn.tanh(x) if name != "fc3" else x
        session.run(tf1.global_variables_initializer())
        tf1.saved_model.simple_save(session, str(path), {"inputs": inputs}, {"output": tf.identity(x, name="output")})
    return path


def minimized(path, loss, make, inputs, steps, masks=None):
    """The loop by hand: `minimize`, and elements put back that are frozen."""
    with Model(path) as model:
        before = list(tf1.global_variables())
        goal = loss(model.graph)
        optimizer = make()
        pairs = optimizer.compute_gradients(goal)
        held = {v.op.name: masks[v.op.name] for _, v in pairs if masks and v.op.name in masks}
        cut = [(tf.where(held[v.op.name], tf.zeros_like(g), g) if v.op.name in held else g, v) for g, v in pairs]
        step = optimizer.apply_gradients(cut)
        model.run(tf1.variables_initializer([v for v in tf1.global_variables() if all(v is not b for b in before)]))
        start = {name: model.variable(name) for name in held}
        for number in range(steps):
            fed = batch(inputs, number)
            model.run(step, {f"{name}:0": value for name, value in fed.items()})
            for name, mask in held.items():
                model.assign(name, np.where(mask, start[name], model.variable(name)))
        return {v.op.name: model.variable(v.op.name) for v in before}


def tensors(prefix):
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def squares(graph):
    targets = tf1.placeholder(tf.float32, [None, 3], name="targets")
    return tf.reduce_mean(tf.square(graph.get_tensor_by_name("output:0") - targets))


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Every model: 20 steps, 10 of them resumed in another process and 10 more."""
    folder = tmp_path_factory.mktemp("graphs")
    made = {}
    for kind in KINDS:
        held = folder / kind / "held"
        plan = graphfreeze.rewrite(MODELS / f"tf1_two_by_two_{kind}", held, freeze="x[[0, 1], [1, 0]]")
        graphfreeze.train_step(held, folder / kind / "out", loss="loss", optimizer="adam(learning_rate=0.1)")
        made[kind] = (plan, A)
    source = three_layers(folder / "source")
    plan = graphfreeze.rewrite(source, folder / "layers" / "held", freeze=["fc1/*", "fc2/w[:2]"])
    graphfreeze.train_step(
        *(folder / "layers" / "held", folder / "layers" / "out"), loss="mse", optimizer="momentum(learning_rate=0.05)"
    )
    made["layers"] = (plan, SLIM)
    runs = [(folder / name, inputs) for name, (_, inputs) in made.items()]
    jobs = [Job(str(f / "out"), i, {10: str(f / "ten"), 20: str(f / "twenty")}, loader="session") for f, i in runs]
    run_jobs(jobs, folder)
    run_jobs(
        [Job(str(f / "out"), i, {20: str(f / "resumed")}, (10, str(f / "ten")), "session") for f, i in runs], folder
    )
    return folder, {name: plan for name, (plan, _) in made.items()}


def effective(plan, stored):
    (meta,) = plan.meta_graphs
    found = {}
    for variable in meta.variables:
        value = stored[variable.name]
        for atom in variable.atoms:
            if atom.name:
                value = atom.region.put(value, stored[atom.name])
        found[variable.name] = value
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_two_by_two_follows_minimize(ran, kind):
    folder, plans = ran
    source = MODELS / f"tf1_two_by_two_{kind}"
    mask = np.array([[False, True], [True, False]])
    start = tensors(source / "variables" / "variables")["x"]
    expected = minimized(
        *(source, lambda g: g.get_tensor_by_name("loss:0"), lambda: tf1.train.AdamOptimizer(0.1), A, 20, {"x": mask})
    )["x"]
    found = effective(plans[kind], tensors(folder / kind / "twenty"))["x"]
    assert_within_eps(found, expected)
    assert_bits_equal(found[mask], start[mask])
    assert (found != start)[~mask].all()


def test_three_layers_follow_minimize(ran):
    folder, plans = ran
    source = folder / "source"
    start = tensors(source / "variables" / "variables")
    masks = {"fc1/w": np.ones((6, 5), bool), "fc1/b": np.ones(5, bool), "fc2/w": np.zeros((5, 4), bool)}
    masks["fc2/w"][:2] = True
    expected = minimized(source, squares, lambda: tf1.train.MomentumOptimizer(0.05, 0.9), SLIM, 20, masks)
    found = effective(plans["layers"], tensors(folder / "layers" / "twenty"))
    for name, value in expected.items():
        assert_within_eps(found[name], value, name)
        held = masks.get(name, np.zeros(value.shape, bool))
        assert_bits_equal(found[name][held], start[name][held], name)
        assert (found[name] != start[name])[~held].all()


@pytest.mark.parametrize("name", [*KINDS, "layers"])
def test_training_goes_on_bit_for_bit_in_a_new_process(ran, name):
    folder, _ = ran
    one, other = tensors(folder / name / "twenty"), tensors(folder / name / "resumed")
    assert one.keys() == other.keys()
    assert any(key.endswith("graphfreeze/train_step") for key in one)
    for key, value in one.items():
        assert_bits_equal(other[key], value, key)


@pytest.mark.parametrize("name", [*KINDS, "layers"])
def test_finalize_gives_the_source_back(ran, name, tmp_path):
    folder, _ = ran
    source = folder / "source" if name == "layers" else MODELS / f"tf1_two_by_two_{name}"
    graphfreeze.finalize(folder / name / "out", tmp_path / "plain")
    found = graphfreeze.diff(source, tmp_path / "plain")
    assert found.equal, found.changes


def test_a_plain_graph_only_grows(tmp_path):
    """G6: nothing of the source changes, in any of its meta graphs; and finalize takes off what is not frozen too."""
    source = MODELS / "tf1_control_ref"
    done = graphfreeze.train_step(source, tmp_path / "out", loss="loss", optimizer="adagrad(learning_rate=0.1)")
    assert done.trained == {"train": ("kernel", "shift")}
    found = graphfreeze.diff(source, tmp_path / "out")
    changed = {(c.subject, c.name) for c in found.changes if c.what != "added"}
    assert changed == {("meta graph", name) for name in ("stripped_op_list", "saver_def", "collection_def")}
    assert found.values == ()
    graphfreeze.finalize(tmp_path / "out", tmp_path / "plain")
    assert graphfreeze.diff(source, tmp_path / "plain").equal


def test_the_train_op_is_in_its_collection(ran):
    folder, _ = ran
    with Model(folder / "layers" / "out"):
        (step,) = tf1.get_collection(tf1.GraphKeys.TRAIN_OP)
        assert step.name == "graphfreeze/train_step/train"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "los"}, "The graph has no output or tensor 'los' to take as the loss. Did you mean 'loss'?"),
        (
            {"optimizer": "adamw"},
            "tf.compat.v1.train has no optimizer 'adamw', which a TF1 graph needs. Did you mean 'adam'?",
        ),
        ({"function": "serve"}, "The graph has no signature 'serve'. It has: loss, serving_default"),
        (
            {"targets": "t:2:int64"},
            "The loss 'loss' is a tensor of the graph and compares nothing with targets",
        ),
    ],
)
def test_messages(options, message, tmp_path):
    with pytest.raises(UsageError) as caught:
        graphfreeze.train_step(
            MODELS / "tf1_two_by_two_ref", tmp_path / "out", **{"loss": "loss", "optimizer": "adam", **options}
        )
    assert str(caught.value) == message
    assert not Path(tmp_path / "out").exists()
