"""TF1 graphs trained by new optimizers in a Session, saved and exported again."""

import numpy as np
import pytest

import graphfreeze
from graphfreeze.savedmodel import read_saved_model
from tests.end_to_end.tf1_models import FULL, HELD, KINDS, combined, rewritten
from tests.helpers.compare import assert_bits_equal, assert_within_eps

pytestmark = pytest.mark.tf

OPTIMIZERS = {
    "GradientDescentOptimizer": (0.1,),
    "MomentumOptimizer": (0.1, 0.9),
    "AdamOptimizer": (0.1,),
    "AdagradOptimizer": (0.1,),
    "AdagradDAOptimizer": None,
    "AdadeltaOptimizer": (0.1,),
    "FtrlOptimizer": (0.1,),
    "RMSPropOptimizer": (0.01,),
    "ProximalGradientDescentOptimizer": (0.1, 0.01, 0.01),
    "ProximalAdagradOptimizer": (0.1, 0.1, 0.01, 0.01),
}


def make_optimizer(name):
    import tensorflow as tf

    tf1 = tf.compat.v1
    if name == "AdagradDAOptimizer":
        return tf1.train.AdagradDAOptimizer(0.1, tf1.train.get_or_create_global_step())
    return getattr(tf1.train, name)(*OPTIMIZERS[name])


CASES = [(n, k, o) for n in HELD for k in KINDS for o in OPTIMIZERS]
CASES = CASES if FULL else CASES[::9]


@pytest.mark.parametrize(("name", "kind", "optimizer"), CASES)
def test_a_new_optimizer_moves_nothing_that_is_frozen(name, kind, optimizer, tmp_path):
    """G3 and G4, against the original with frozen elements put back after every step."""
    from tests.helpers.sessions import Model, effective, minimize, trained_oracle

    original, out, plan = rewritten(
        name, kind, tmp_path, strategy="mask" if CASES.index((name, kind, optimizer)) % 2 else None
    )
    meta = plan.meta_graphs[0]
    expected = trained_oracle(original, meta, lambda: make_optimizer(optimizer), steps=8)
    with Model(out, meta.tags) as held:
        before = {v.name: effective(held, v) for v in meta.variables}
        minimize(held, lambda: make_optimizer(optimizer), steps=8)
        for variable in meta.variables:
            after = effective(held, variable)
            if variable.frozen:
                region = variable.region or None
                if region is not None:
                    assert_bits_equal(region.take(after), region.take(before[variable.name]), variable.name)
                    if variable.strategy != "mask":
                        assert_bits_equal(region.take(held.variable(variable.name)), region.take(before[variable.name]))
            assert_within_eps(after, expected[variable.name], variable.name)
        assert any(np.any(effective(held, v) != before[v.name]) for v in meta.variables)


@combined([None, "deep/inside"])
def test_trained_and_exported_again(name, kind, how, tmp_path):
    """G5: the original with the trained values; the user's slots stay, ours and the train op on parts go."""
    from tests.helpers.sessions import Model, assert_same_fetches, computable, effective, export, minimize

    original, out, plan = rewritten(name, kind, tmp_path)
    meta = plan.meta_graphs[0]
    prefix = f"{how}/" if how else ""
    with Model(out, meta.tags, how) as held:
        minimize(held, lambda: make_optimizer("AdamOptimizer"), steps=3)
        values = {v.name: effective(held, v, prefix) for v in meta.variables}
        export(held, tmp_path / "trained", meta.tags)
    done = graphfreeze.finalize(tmp_path / "trained", tmp_path / "plain")
    assert set(done.variables) == {prefix + (v.part_of or v.name) for v in meta.variables if v.strategy}
    back = read_saved_model(tmp_path / "plain")
    nodes = {n.name: n for n in back.proto.meta_graphs[0].graph_def.node if "graphfreeze" in str(n)}
    assert not nodes
    assert "graphfreeze" not in str(back.proto)
    assert not [key for key in back.bundle.entries if "graphfreeze" in key]
    with Model(original, meta.tags) as plain, Model(tmp_path / "plain", meta.tags) as back:
        for variable, value in values.items():
            assert_bits_equal(back.variable(prefix + variable), value, variable)
            plain.assign(variable, value)
        assert_same_fetches(back, plain, computable(plain, plain.fetchable()), prefix)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saver_of_the_user_holds_the_new_variables(kind, tmp_path):
    import tensorflow as tf

    from tests.helpers.sessions import Model, effective, minimize

    _, out, plan = rewritten("layers", kind, tmp_path)
    meta = plan.meta_graphs[0]
    with Model(out, meta.tags) as held:
        minimize(held, lambda: make_optimizer("AdamOptimizer"), steps=3)
        values = {v.name: effective(held, v) for v in meta.variables}
        checkpoint = tf.compat.v1.train.Saver().save(held.session, str(tmp_path / "model.ckpt"))
    with Model(out, meta.tags) as held:
        tf.compat.v1.train.Saver().restore(held.session, checkpoint)
        for variable in meta.variables:
            assert_bits_equal(effective(held, variable), values[variable.name], variable.name)
