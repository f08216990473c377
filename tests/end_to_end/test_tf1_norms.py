"""TF1 graphs that clip, add up or check gradients before they train: frozen elements take no part in that (G4)."""

import json

import numpy as np
import pytest

import graphfreeze
from tests.end_to_end.tf1_models import FULL, KINDS
from tests.helpers.compare import assert_bits_equal, assert_within_eps
from tests.helpers.finalized import finalized_differences

pytestmark = pytest.mark.tf

STEPS = 20
FLOWS = [("ref", False), ("resource", False), ("resource", True)]
"""Kind of variable, and whether branches are functions."""


def mask_of(index, shape):
    mask = np.zeros(shape, bool)
    mask[eval(f"np.s_{index}") if index else ...] = True
    return mask


CASES = [(index, *flow) for index in ("[:2]", "[..., :2]", "") for flow in FLOWS]


@pytest.mark.parametrize(("index", "kind", "functions"), CASES if FULL else CASES[::4])
def test_frozen_elements_do_not_count_in_norms(index, kind, functions, tmp_path):
    from tests.end_to_end import tf1_steps
    from tests.helpers.sessions import Model

    build = {"resource": kind == "resource", "functions": functions}
    train = [f"{n}/train" for n in tf1_steps.NORMS]
    feed = {s: {"x:0": tf1_steps.feed_of(s)["x:0"]} for s in range(30)}
    tf1_steps.save_trained(tmp_path, tf1_steps.build_norms, train, feed.get, **build)
    # A tensor of two variables is masked for one of them.
    masks = {n: mask_of(index, s) for n, s in tf1_steps.NORMED.items() if n != "shared/b"}
    chosen = [f"{n}{index}" for n in masks]
    plan = graphfreeze.rewrite(tmp_path / "model", tmp_path / "out", freeze=chosen, allow_empty=True)
    told = {v.name: [w.gradient for w in v.writes] for v in plan.meta_graphs[0].variables if v.name in masks}
    assert all("masked at" in found for gradients in told.values() for found in gradients), told
    held_not = {"shared/b": np.zeros((8, 6), bool)}
    oracle = tf1_steps.Oracle(tmp_path, tf1_steps.build_norms, masks | held_not, **build)
    with Model(tmp_path / "out", ["train"]) as model:
        for step in range(STEPS):
            model.run(train, feed[step])
            oracle.step(train, feed[step])
        seen = tf1_steps.fetched(model, list(oracle.masks))
    expected = oracle.values()
    for name, mask in oracle.masks.items():
        for values in seen:
            assert_bits_equal(values[name][mask], oracle.start[name][mask], name)
            assert_within_eps(values[name], expected[name], name)
        if not mask.all():
            assert np.any(expected[name] != oracle.start[name]), name
    graphfreeze.finalize(tmp_path / "out", tmp_path / "plain")
    assert finalized_differences(tmp_path / "plain", tmp_path / "model") == []


def clipped_table(resource):
    """A table in three parts, looked up and taken as a whole, under one norm."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    value = tf.constant(np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32))
    with tf1.variable_scope("", partitioner=tf1.fixed_size_partitioner(3), use_resource=resource):
        table = tf1.get_variable("table", initializer=value)
    tf1.get_variable("other", initializer=1.0)
    ids = tf1.placeholder(tf.int32, [None], name="ids")
    found = tf1.nn.embedding_lookup(list(table), ids, partition_strategy="div")
    loss = tf.reduce_sum(tf.square(found - 1.0)) + tf.reduce_sum(tf.square(tf.convert_to_tensor(table)))
    optimizer = tf1.train.GradientDescentOptimizer(0.5)
    pairs = optimizer.compute_gradients(loss, var_list=list(table))
    clipped, _ = tf.clip_by_global_norm([g for g, _ in pairs], 1.0)
    optimizer.apply_gradients([(g, v) for g, (_, v) in zip(clipped, pairs, strict=True)], name="train")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", ["[2:6]", "[8, 1:3]"])
def test_parts_of_a_partitioned_variable(kind, index, tmp_path):
    from tests.end_to_end.tf1_steps import save
    from tests.helpers.sessions import Model

    save(tmp_path / "model", lambda: clipped_table(kind == "resource"))
    graphfreeze.rewrite(tmp_path / "model", tmp_path / "out", freeze=f"table{index}")
    names, ids = [f"table/part_{i}" for i in range(3)], [0, 2, 5, 9, 2]
    mask = mask_of(index, (10, 4))
    with Model(tmp_path / "out", ["train"]) as model:
        start = np.concatenate(list(model.values(names).values()))
        model.run("train", {"ids:0": ids})
        after = np.concatenate(list(model.values(names).values()))
    gradient = 2 * start
    np.add.at(gradient, ids, 2 * (start[ids] - 1))
    gradient[mask] = 0
    expected = start - 0.5 * gradient * min(1, 1 / np.linalg.norm(gradient))
    assert_bits_equal(after[mask], start[mask])
    np.testing.assert_allclose(after, expected, rtol=0, atol=2e-6)


def clipped_rounds(resource):
    """A `while_loop` whose rounds compute, clip and take a step, one after the other."""
    import tensorflow as tf

    from tests.end_to_end.tf1_steps import variable

    tf1 = tf.compat.v1
    x = variable("x", (4, 3), resource)
    tf1.get_variable("other", initializer=1.0)
    rounds = tf1.placeholder(tf.int32, [], name="rounds")

    def now():
        return x.read_value() if resource else tf.identity(x._ref())

    def body(i, before):
        with tf1.control_dependencies([before]):
            raw = tf.matmul(tf.ones([4, 4]) * 0.1, now() - 1.0) * tf.cast(i + 1, tf.float32)
        written = tf1.assign_sub(x, tf.clip_by_norm(raw, 0.5))
        with tf1.control_dependencies([written.op]):
            return i + 1, tf.reduce_sum(now())

    end = tf1.while_loop(lambda i, _: i < rounds, body, (tf.constant(0), tf.constant(0.0)))
    tf.identity(end[1], name="train")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", ["[:2]", "[:, :1]", ""])
def test_training_inside_a_loop(kind, index, tmp_path):
    from tests.end_to_end.tf1_steps import save
    from tests.helpers.sessions import Model

    save(tmp_path / "model", lambda: clipped_rounds(kind == "resource"))
    graphfreeze.rewrite(tmp_path / "model", tmp_path / "out", freeze=f"x{index}", allow_empty=True)
    mask = mask_of(index, (4, 3))
    with Model(tmp_path / "out", ["train"]) as model:
        start = model.variable("x")
        model.run("train:0", {"rounds:0": 4})
        after = model.variable("x")
    expected = start.copy()
    for i in range(4):
        gradient = np.full((4, 4), 0.1, np.float32) @ (expected - 1) * (i + 1)
        gradient[mask] = 0
        expected = expected - gradient * min(1, 0.5 / max(np.linalg.norm(gradient), 1e-9))
    assert_bits_equal(after[mask], start[mask])
    np.testing.assert_allclose(after, expected, rtol=0, atol=2e-6)
    graphfreeze.finalize(tmp_path / "out", tmp_path / "plain")
    assert finalized_differences(tmp_path / "plain", tmp_path / "model") == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_that_is_not_found_is_told(kind, tmp_path):
    import tensorflow as tf

    from tests.end_to_end.tf1_steps import save, variable

    tf1 = tf.compat.v1

    def build():
        x = variable("x", (4, 3), kind == "resource")
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        ((gradient, _),) = optimizer.compute_gradients(tf.reduce_sum(tf.square(x - 2.0)), var_list=[x])
        flat = tf.clip_by_norm(tf.reshape(gradient, [-1]), 0.1)
        optimizer.apply_gradients([(tf.reshape(flat, [4, 3]), x)], name="train")

    save(tmp_path / "model", build)
    plan = graphfreeze.plan(tmp_path / "model", freeze="x[:1]")
    told = json.loads(json.dumps(plan.to_dict()))["meta_graphs"][0]["variables"][0]["writes"]
    assert [(w["guard"], w["gradient"]) for w in told] == [("box put back", "source not found")]
    (warning,) = [w for w in plan.warnings if "was not found" in w]
    assert warning == (
        "'x': the model computes a norm of its gradients, and the source of this one was not found: frozen elements do "
        "not move, but count in that norm, so the rest may train a little slower. plan -v shows the write"
    )
