"""A TF-Slim network, trained layer by layer with new optimizers and by its old train op, in both kinds of variables.

The oracle is the fixture's own Python, restored from the same checkpoint; what is frozen is put back by hand after
every step, and for ``--batch-norm inference`` its norm is built with the stored statistics.
"""

import sys

import numpy as np
import pytest

import graphfreeze
from graphfreeze.planning.plan import Storage
from tests.conftest import MODELS
from tests.helpers.compare import assert_bits_equal, assert_within_eps

pytestmark = pytest.mark.tf
sys.path.insert(0, str(MODELS.parent))

KINDS = ("ref", "resource")
STEPS = 6
NORM = ["fc1/BatchNorm/gamma", "fc1/BatchNorm/beta"]
STATISTICS = ["fc1/BatchNorm/moving_mean", "fc1/BatchNorm/moving_variance"]
FIRST_LAYER = ["fc1/weights", *NORM]
NAMES = [*FIRST_LAYER, *STATISTICS, "fc2/weights", "fc3/weights"]
OPTIONS = ("freeze-stats", "update", "inference")


def loaded(path, tag="train"):
    from tests.helpers.sessions import Model

    return Model(path, [tag])


class Oracle:
    """The fixture's graph with the weights of the model on disk."""

    def __init__(self, kind, option):
        import tensorflow as tf
        from recipes import slim

        self.tf1 = tf.compat.v1
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.session = self.tf1.Session()
            slim.train_graph(kind == "resource", training=option != "inference")
            saver = self.tf1.train.Saver()
            saver.restore(self.session, str(MODELS / f"tf1_slim_{kind}" / "variables" / "variables"))
            self.variables = {v.op.name: v for v in self.tf1.global_variables()}

    def values(self):
        return self.session.run({n: self.variables[n] for n in NAMES})

    def put_back(self, before, frozen):
        with self.graph.as_default():
            for name, mask in frozen.items():
                value = np.where(mask, before[name], self.session.run(self.variables[name]))
                self.variables[name].load(value, self.session)


def effective(model, plan):
    """The effective values of a rewritten model by name."""
    from tests.helpers.sessions import effective

    return {v.name: effective(model, v) for v in plan.variables if v.name in NAMES}


def step_of(graph, optimizer, layer):
    """A new train op for one layer; the losses and update ops come from the graph, as TF-Slim trains."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    with graph.as_default():
        chosen = tf1.trainable_variables(scope=f"{layer}/")
        assert chosen
        with tf1.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
            before = set(tf1.global_variables())
            train = optimizer(tf1, layer).minimize(graph.get_tensor_by_name("loss:0"), var_list=chosen)
        return train, tf1.variables_initializer([v for v in tf1.global_variables() if v not in before])


def assert_follows(held, plan, oracle, before, frozen):
    after, expected = effective(held, plan), oracle.values()
    for name in NAMES:
        mask = frozen.get(name, np.zeros(before[name].shape, bool))
        assert_bits_equal(after[name][mask], before[name][mask], name)
        assert_within_eps(after[name], expected[name], name)
    return after


OPTIMIZERS = {
    # The graph has slots under the name "Adam" already.
    "adam": lambda tf1, layer: tf1.train.AdamOptimizer(0.01, name=f"New_{layer}"),
    "momentum": lambda tf1, layer: tf1.train.MomentumOptimizer(0.05, 0.9, name=f"New_{layer}"),
}
CASES = [(k, o, n) for k in KINDS for o in OPTIONS for n in OPTIMIZERS]


@pytest.mark.parametrize(("kind", "option", "optimizer"), CASES[::2] + CASES[1:2])
def test_layer_by_layer(kind, option, optimizer, tmp_path):
    """The first layer is frozen; a new optimizer trains the second, then another the third."""
    from recipes.slim import batch

    made = graphfreeze.rewrite(MODELS / f"tf1_slim_{kind}", tmp_path / "out", freeze=FIRST_LAYER, batch_norm=option)
    plan = next(m for m in made.meta_graphs if m.tags == ("train",))
    oracle = Oracle(kind, option)
    before = oracle.values()
    held_whole = FIRST_LAYER + (STATISTICS if option != "update" else [])
    frozen = {name: np.ones(before[name].shape, bool) for name in held_whole}
    with loaded(tmp_path / "out") as held:
        for layer in ("fc2", "fc3"):
            train, start = step_of(held.graph, OPTIMIZERS[optimizer], layer)
            expected, begin = step_of(oracle.graph, OPTIMIZERS[optimizer], layer)
            held.session.run(start)
            oracle.session.run(begin)
            for number in range(STEPS):
                held.session.run(train, batch(number))
                oracle.session.run(expected, batch(number))
                oracle.put_back(before, frozen)
        after = assert_follows(held, plan, oracle, before, frozen)
    for name in ("fc2/weights", "fc3/weights", *(STATISTICS if option == "update" else ())):
        assert (after[name] != before[name]).any(), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_slice_of_the_layer_that_trains(kind, tmp_path):
    """Columns of the first layer are frozen, with one element of gamma: the norm goes on moving its statistics.

    Its old train op writes the weights, so the variable itself trains, and a copy is laid over the frozen columns.
    """
    from recipes.slim import batch

    made = graphfreeze.rewrite(
        MODELS / f"tf1_slim_{kind}", tmp_path / "out", freeze=["fc1/weights[:, :2]", "fc1/BatchNorm/gamma[0]"]
    )
    plan = next(m for m in made.meta_graphs if m.tags == ("train",))
    assert [n.choice for n in plan.batch_norms] == ["update"]
    assert plan.batch_norms[0].reason == "'fc1/BatchNorm/gamma' and 'fc1/BatchNorm/beta' are not frozen whole"
    assert {a.storage for v in plan.variables for a in v.atoms} == {Storage.BASE, Storage.COPY}
    oracle = Oracle(kind, "update")
    before = oracle.values()
    frozen = {name: np.zeros(before[name].shape, bool) for name in FIRST_LAYER[:2]}
    frozen["fc1/weights"][:, :2] = True
    frozen["fc1/BatchNorm/gamma"][0] = True
    with loaded(tmp_path / "out") as held:
        train, start = step_of(held.graph, OPTIMIZERS["adam"], "fc1")
        expected, begin = step_of(oracle.graph, OPTIMIZERS["adam"], "fc1")
        held.session.run(start)
        oracle.session.run(begin)
        for number in range(STEPS):
            held.session.run(train, batch(number))
            oracle.session.run(expected, batch(number))
            oracle.put_back(before, frozen)
        assert_follows(held, plan, oracle, before, frozen)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_old_train_op(kind, option, tmp_path):
    """Adam as it was saved, its slots and the updates of the norm: what is frozen stays, the rest trains on."""
    from recipes.slim import batch

    made = graphfreeze.rewrite(
        MODELS / f"tf1_slim_{kind}",
        tmp_path / "out",
        freeze=[*FIRST_LAYER, "fc2/weights[1:3]"],
        batch_norm=option,
    )
    plan = next(m for m in made.meta_graphs if m.tags == ("train",))
    oracle = Oracle(kind, option)
    before = oracle.values()
    held_whole = FIRST_LAYER + (STATISTICS if option != "update" else [])
    frozen = {name: np.ones(before[name].shape, bool) for name in held_whole}
    frozen["fc2/weights"] = np.zeros(before["fc2/weights"].shape, bool)
    frozen["fc2/weights"][1:3] = True
    with loaded(tmp_path / "out") as held:
        for number in range(STEPS):
            held.session.run("train", batch(number))
            oracle.session.run("train", batch(number))
            oracle.put_back(before, frozen)
        assert_follows(held, plan, oracle, before, frozen)


@pytest.mark.parametrize("kind", KINDS)
def test_serving_and_finalize(kind, tmp_path):
    """The meta graph to serve gives what it gave, and finalize gives the source back, ``inference`` included."""
    from recipes.slim import batch

    source = MODELS / f"tf1_slim_{kind}"
    graphfreeze.rewrite(source, tmp_path / "out", freeze=FIRST_LAYER, batch_norm="inference")
    feed = {"inputs:0": batch(0)["inputs:0"]}
    with loaded(source, "serve") as plain, loaded(tmp_path / "out", "serve") as held:
        wanted = plain.run("output:0", feed)
        assert_bits_equal(held.run("output:0", feed), wanted, "serve")
    with loaded(tmp_path / "out") as held:
        assert_within_eps(held.run("output:0", feed), wanted, "training mode with stored statistics")
    graphfreeze.finalize(tmp_path / "out", tmp_path / "plain")
    assert graphfreeze.diff(source, tmp_path / "plain").changes == ()
