"""A train op for each phase of a TF1 graph, against one ``minimize(var_list=...)`` each in a program by hand."""

import pytest

import graphfreeze
from tests.conftest import MODELS
from tests.end_to_end.test_tf1_phases import SPEC, STEPS, TRAINS, by_hand
from tests.helpers.compare import assert_bits_equal, assert_within_eps

pytestmark = pytest.mark.tf


@pytest.mark.parametrize("kind", ["ref", "resource"])
def test_statistics_of_its_own(kind, tmp_path):
    import tensorflow as tf

    from tests.helpers.sessions import Model, effective, loss_of

    source = MODELS / f"tf1_layers_{kind}"
    (tmp_path / "spec.toml").write_text(SPEC)
    plan = graphfreeze.rewrite(source, tmp_path / "held", spec=tmp_path / "spec.toml")
    meta = plan.meta_graphs[0]
    with Model(source, meta.tags) as model:
        feed, loss = loss_of(model.meta)
    done = graphfreeze.train_step(tmp_path / "held", tmp_path / "out", loss=loss, optimizer="adam(learning_rate=0.1)")
    assert {f"train@{phase}" for phase in TRAINS} < set(done.signatures)
    expected = by_hand(source, meta.tags)
    with Model(tmp_path / "out", meta.tags) as model:
        assert len(tf.compat.v1.get_collection("train_op")) == len(TRAINS)
        for number, phase in enumerate(TRAINS):
            result = model.meta.signature_def[f"train@{phase}"].outputs["loss"].name
            for _ in range(STEPS):
                model.run(result, feed)
            for variable in meta.variables:
                assert_within_eps(effective(model, variable), expected[number][variable.name], variable.name)
    graphfreeze.finalize(tmp_path / "out", tmp_path / "plain")


LAYERS = {"first": "fc1", "second": "fc2"}
LAYER_BY_LAYER = """
freeze = "**"
[[phase]]
name = "first"
train = "fc1/**"
[[phase]]
name = "second"
train = "fc2/**"
"""
CYCLES = 2


@pytest.mark.parametrize("shared", [False, True])
def test_layer_by_layer_in_cycles(shared, tmp_path):
    """One optimizer for all layers, whose powers of beta go on with every step, or one for each."""
    import tensorflow as tf

    from tests.helpers.sessions import Model, loss_of

    tf1, source = tf.compat.v1, MODELS / "tf1_layers_resource"
    (tmp_path / "spec.toml").write_text(LAYER_BY_LAYER)
    meta = graphfreeze.rewrite(source, tmp_path / "held", spec=tmp_path / "spec.toml").meta_graphs[0]
    expected = []
    with Model(source, meta.tags) as model:
        feed, name = loss_of(model.meta)
        loss, before = model.graph.get_tensor_by_name(name), set(tf1.global_variables())
        weights = [v.op.name for v in tf1.trainable_variables()]
        one = tf1.train.AdamOptimizer(0.1)
        steps = [
            (one if shared else tf1.train.AdamOptimizer(0.1)).minimize(
                loss, var_list=tf1.trainable_variables(scope=f"{layer}/")
            )
            for layer in LAYERS.values()
        ]
        model.run(tf1.variables_initializer([v for v in tf1.global_variables() if v not in before]))
        for step in steps * CYCLES:
            for _ in range(STEPS):
                model.run(step, feed)
            expected.append({w: model.variable(w) for w in weights})
    graphfreeze.train_step(
        tmp_path / "held", tmp_path / "out", loss=name, optimizer="adam(learning_rate=0.1)", shared_state=shared
    )
    with Model(tmp_path / "out", meta.tags) as model:
        last = {w: model.variable(w) for w in weights}
        for (phase, layer), wanted in zip([*LAYERS.items()] * CYCLES, expected, strict=True):
            result = model.meta.signature_def[f"train@{phase}"].outputs["loss"].name
            for _ in range(STEPS):
                model.run(result, feed)
            now = {w: model.variable(w) for w in weights}
            for weight in weights:
                if not weight.startswith(f"{layer}/"):
                    assert_bits_equal(now[weight], last[weight], weight)
                assert_within_eps(now[weight], wanted[weight], weight)
            last = now
