"""Phases of TF1 graphs: one ``minimize(var_list=...)`` for each, against a TF1 program written by hand."""

import numpy as np
import pytest

import graphfreeze
from tests.conftest import MODELS
from tests.helpers.compare import assert_bits_equal, assert_within_eps

pytestmark = pytest.mark.tf

SPEC = """
freeze = "fc1/**"
[[phase]]
name = "head"
[[phase]]
name = "columns"
train = "fc1/weights[:, :2]"
freeze = "fc2/biases"
[[phase]]
name = "overlap"
train = ["fc1/weights[:, 1:3]", "fc1/biases"]
"""
TRAINS = {
    "head": {"fc2/weights": np.s_[...], "fc2/biases": np.s_[...]},
    "columns": {"fc1/weights": np.s_[:, :2], "fc2/weights": np.s_[...]},
    "overlap": {
        "fc1/weights": np.s_[:, 1:3],
        "fc1/biases": np.s_[...],
        "fc2/weights": np.s_[...],
        "fc2/biases": np.s_[...],
    },
}
STEPS = 5


def by_hand(path, tags):
    """A new Adam for each phase; gradients of held elements are zero, and the elements are put back."""
    import tensorflow as tf

    from tests.helpers.sessions import Model, loss_of

    tf1 = tf.compat.v1
    found = []
    with Model(path, tags) as model:
        feed, loss = loss_of(model.meta)
        for regions in TRAINS.values():
            names = [v.op.name for v in tf1.trainable_variables()]
            start = {name: model.variable(name) for name in names}
            masks = {name: np.zeros(start[name].shape, np.bool_) for name in names}
            for name, region in regions.items():
                masks[name][region] = True
            before = set(tf1.global_variables())
            optimizer = tf1.train.AdamOptimizer(0.1)
            variables = [v for v in tf1.trainable_variables() if v.op.name in regions]
            pairs = optimizer.compute_gradients(model.graph.get_tensor_by_name(loss), variables)
            masked = [(tf.where(tf.constant(masks[v.op.name]), g, tf.zeros_like(g)), v) for g, v in pairs]
            step = optimizer.apply_gradients(masked)
            model.run(tf1.variables_initializer([v for v in tf1.global_variables() if v not in before]))
            for _ in range(STEPS):
                model.run(step, feed)
                for name, mask in masks.items():
                    model.assign(name, np.where(mask, model.variable(name), start[name]))
            found.append({name: model.variable(name) for name in names})
    return found


@pytest.mark.parametrize("kind", ["ref", "resource"])
def test_one_minimize_for_each_phase(kind, tmp_path):
    import tensorflow as tf

    from tests.helpers.sessions import Model, effective, loss_of

    tf1 = tf.compat.v1
    source = MODELS / f"tf1_layers_{kind}"
    (tmp_path / "spec.toml").write_text(SPEC)
    plan = graphfreeze.rewrite(source, tmp_path / "out", spec=tmp_path / "spec.toml")
    meta = plan.meta_graphs[0]
    expected = by_hand(source, meta.tags)
    with Model(tmp_path / "out", meta.tags) as model:
        feed, loss = loss_of(model.meta)
        listed = [v.op.name for v in tf1.trainable_variables()]
        assert listed == [v.op.name for v in graphfreeze.trainable_variables(model.graph, phase="head")]
        for number, phase in enumerate(meta.phases):
            # As a program without graphfreeze does it.
            names = {tensor.name for tensor in tf1.get_collection(f"graphfreeze/{phase.name}")}
            variables = [v for v in tf1.global_variables() if v.name in names]
            assert {v.op.name for v in variables} == set(phase.variables)
            assert set(variables) == set(graphfreeze.trainable_variables(model.graph, phase=phase.name))
            start = {v.name: effective(model, v) for v in meta.variables}
            before = set(tf1.global_variables())
            step = tf1.train.AdamOptimizer(0.1).minimize(model.graph.get_tensor_by_name(loss), var_list=variables)
            model.run(tf1.variables_initializer([v for v in tf1.global_variables() if v not in before]))
            for _ in range(STEPS):
                model.run(step, feed)
            for variable in meta.variables:
                after = effective(model, variable)
                mask = np.ones(after.shape, np.bool_)
                if variable.name in TRAINS[phase.name]:
                    mask[TRAINS[phase.name][variable.name]] = False
                assert_bits_equal(after[mask], start[variable.name][mask], f"{phase.name} {variable.name}")
                assert_within_eps(after, expected[number][variable.name], f"{phase.name} {variable.name}")


@pytest.mark.parametrize("kind", ["ref", "resource"])
def test_finalize(kind, tmp_path):
    source = MODELS / f"tf1_layers_{kind}"
    (tmp_path / "spec.toml").write_text(SPEC)
    plan = graphfreeze.rewrite(source, tmp_path / "out", spec=tmp_path / "spec.toml")
    assert graphfreeze.phases(tmp_path / "out").meta_graphs[0].phases == plan.meta_graphs[0].phases
    graphfreeze.finalize(tmp_path / "out", tmp_path / "plain")
    assert graphfreeze.diff(source, tmp_path / "plain").equal


def test_no_such_phase(tmp_path):
    import tensorflow as tf

    with pytest.raises(graphfreeze.UsageError) as caught:
        graphfreeze.trainable_variables(tf.Graph(), phase="head")
    assert str(caught.value) == "The graph has no phase 'head': its collection 'graphfreeze/head' is empty"
    (tmp_path / "spec.toml").write_text('[[phase]]\nname = "a"\nfreeze = "dense/**"\n')
    graphfreeze.rewrite(MODELS / "embedding", tmp_path / "out", spec=tmp_path / "spec.toml")
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    with pytest.raises(graphfreeze.UsageError) as caught:
        graphfreeze.trainable_variables(loaded, phase="b")
    assert str(caught.value) == "The model has no phase 'b'. It has 'a'"
