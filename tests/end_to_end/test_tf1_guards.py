"""TF1 graphs that train themselves: their own train ops leave frozen elements alone, and train the rest as they should.

Everything is compared with a graph built by hand (``tf1_steps``), in a Session, from warm slots.
"""

from functools import partial

import numpy as np
import pytest

import graphfreeze
from graphfreeze.savedmodel import read_saved_model
from tests.end_to_end.tf1_models import FULL, KINDS
from tests.helpers.compare import assert_bits_equal, assert_within_eps
from tests.helpers.finalized import finalized_differences

pytestmark = pytest.mark.tf

STEPS = 20
REGIONS = {
    "whole": "",
    "rows": "[1:3]",
    "most rows": "[:-1]",
    "row list": "[[0, 2, 3]]",
    "columns": "[..., :1]",
    "stepped": "[..., ::2]",
    "points": "[[0, 1], [0, 1]]",
    "one point": "[0, 0]",
}


def mask_of(index, shape):
    mask = np.zeros(shape, bool)
    mask[eval(f"np.s_{index}") if index else ...] = True
    return mask


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """The model with every optimizer, by kind."""
    from tests.end_to_end import tf1_steps

    folders = {}

    def of(kind):
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp(kind)
            train = [f"{n}/train" for n in tf1_steps.OPTIMIZERS]
            tf1_steps.save_trained(
                folders[kind], tf1_steps.build_optimizers, train, tf1_steps.feed_of, resource=kind == "resource"
            )
        return folders[kind]

    return of


CASES = [(region, kind) for region in REGIONS for kind in KINDS]


@pytest.mark.parametrize(("region", "kind"), CASES if FULL else [CASES[0], CASES[7], CASES[10]])
def test_own_train_ops_leave_frozen_elements_and_train_the_rest(region, kind, warm, tmp_path):
    """G3 and G4 for every optimizer, dense and sparse."""
    from tests.end_to_end import tf1_steps
    from tests.helpers.sessions import Model

    folder = warm(kind)
    shapes = {
        f"{n}/{v}": s for n in tf1_steps.OPTIMIZERS for v, s in (("kernel", tf1_steps.KERNEL), ("table", (10, 4)))
    }
    masks = {n: mask_of(REGIONS[region], s) for n, s in shapes.items()}
    chosen = [f"{n}{REGIONS[region]}" for n in shapes]
    graphfreeze.rewrite(folder / "model", tmp_path / "out", freeze=chosen, allow_empty=True)
    oracle = tf1_steps.Oracle(folder, tf1_steps.build_optimizers, masks, resource=kind == "resource")
    train = [f"{n}/train" for n in tf1_steps.OPTIMIZERS]
    with Model(tmp_path / "out", ["train"]) as held:
        slots = [v for v in tf1_steps.variables_of(held) if v.rpartition("/")[0] in shapes and "graphfreeze" not in v]
        assert len(slots) > 20
        before = held.values(slots)
        for step in range(STEPS):
            held.run(train, tf1_steps.feed_of(step))
            oracle.step(train, tf1_steps.feed_of(step))
        still = [v for v, value in held.values(slots).items() if value.tobytes() == before[v].tobytes()]
        assert still == (slots if region == "whole" else [])
        seen = [*tf1_steps.fetched(held, list(shapes)), tf1_steps.stored(held, tmp_path, shapes)]
    expected = oracle.values()
    for name, mask in masks.items():
        for values in seen:
            assert_bits_equal(values[name][mask], oracle.start[name][mask], name)
            assert_within_eps(values[name], expected[name], name)
        moved = expected[name] != oracle.start[name]
        assert (moved & ~mask).sum() >= 0.7 * (~mask).sum(), name


def export_again(path, target, how, values):
    """What a session exports after the original was loaded and given these values."""
    from tests.helpers.sessions import Model, export

    with Model(path, ["train"], how) as model:
        model.assign_all(values)
        export(model, target, ["train"])
    return target


WAYS = [(kind, how) for kind in KINDS for how in (None, "deep/inside")]


@pytest.mark.parametrize(("kind", "how"), WAYS if FULL else WAYS[1:3])
def test_trained_exported_and_finalized(kind, how, tmp_path):
    """G5: the graph that the original would be, trained and exported, guards and masks taken out again."""
    from tests.end_to_end import tf1_steps
    from tests.helpers.sessions import Model, export

    names = ("momentum", "adam", "ftrl")
    frozen = ["momentum/kernel[:2]", "momentum/table", "adam/kernel", "adam/table[[0, 2]]", "ftrl/*[:, ::2]"]
    build, train = partial(tf1_steps.build_optimizers, chosen=names), [f"{n}/train" for n in names]
    source = tf1_steps.save_trained(tmp_path, build, train, tf1_steps.feed_of, resource=kind == "resource")
    graphfreeze.rewrite(source, tmp_path / "out", freeze=frozen)
    graphfreeze.finalize(tmp_path / "out", tmp_path / "undone")
    assert finalized_differences(tmp_path / "undone", source) == []
    prefix = f"{how}/" if how else ""
    with Model(tmp_path / "out", ["train"], how) as model:
        for step in range(3):
            feed = {prefix + key: value for key, value in tf1_steps.feed_of(step).items()}
            model.run([prefix + name for name in train], feed)
        values = model.values([n for n in tf1_steps.variables_of(model) if "graphfreeze" not in n])
        export(model, tmp_path / "trained", ["train"])
    graphfreeze.finalize(tmp_path / "trained", tmp_path / "plain")
    again = read_saved_model(export_again(source, tmp_path / "expected", how, values))
    plain = read_saved_model(tmp_path / "plain")
    assert "graphfreeze" not in str(plain.proto)
    # Each export adds a saver of its own, and each test the reads that it asks for.
    own = {prefix + n.name for n in read_saved_model(source).proto.meta_graphs[0].graph_def.node}
    nodes, expected = (
        {n.name: n for n in m.proto.meta_graphs[0].graph_def.node if n.name in own} for m in (plain, again)
    )
    assert nodes.keys() == expected.keys() == own
    assert [name for name in sorted(own) if nodes[name] != expected[name]] == []
    assert plain.bundle.entries.keys() == again.bundle.entries.keys()
    assert all(plain.bundle.read_bytes(key) == again.bundle.read_bytes(key) for key in plain.bundle.entries)


def network(kind, freeze, folder, **options):
    from tests.conftest import MODELS

    path = MODELS / f"tf1_network_{kind}"
    return path, graphfreeze.rewrite(path, folder / "out", freeze=freeze, allow_empty=True, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_whole_variable_no_longer_needs_is_not_computed(kind, tmp_path):
    """Its slots do not move, what led to the update on the side still runs, and no gradient is asked for."""
    from tests.end_to_end import tf1_steps
    from tests.helpers.sessions import Model, loss_of

    _, plan = network(kind, ["fc1/weights", "fc1/biases", "fc2/**"], tmp_path)
    assert {w.guard for v in plan.meta_graphs[0].touched() for w in v.writes} == {"does not run"}
    with Model(tmp_path / "out", ["train"]) as model:
        update = "train/update_fc1/weights/" + ("ResourceApplyAdam" if kind == "resource" else "ApplyAdam")
        assert model.graph.get_operation_by_name(update).type == "NoOp"
        variables = tf1_steps.variables_of(model)
        before = model.values(variables)
        feed, _ = loss_of(model.meta)
        needed = {name for name in feed if "inputs" in name}
        # The loss is not computed, so its target is not asked for.
        model.run("train", {name: feed[name] for name in needed})
        after = model.values(variables)
    moved = {n for n in variables if before[n].tobytes() != after[n].tobytes()}
    assert {n.removeprefix("train/") for n in moved} == {"fc1/moving_mean", "global_step", "beta1_power", "beta2_power"}


BESIDE = [(k, *way) for way in ((True, None), (False, ["fc1/weights", "fc2/weights"])) for k in KINDS]


@pytest.mark.parametrize(("kind", "after_old", "chosen"), BESIDE if FULL else BESIDE[::3])
def test_a_new_optimizer_beside_the_old_train_op(kind, after_old, chosen, tmp_path):
    import tensorflow as tf

    from tests.end_to_end.test_tf1_training import OPTIMIZERS, make_optimizer
    from tests.helpers.sessions import Model, effective, loss_of

    tf1 = tf.compat.v1
    _, plan = network(kind, ["fc1/weights[:2]", "fc1/biases", "fc2/weights[[0, 3], [1, 2]]"], tmp_path)
    meta = plan.meta_graphs[0]
    frozen = [v for v in meta.variables if v.frozen]
    for name in OPTIMIZERS if FULL else list(OPTIMIZERS)[:: 3 if after_old else 4]:
        with Model(tmp_path / "out", ["train"]) as held:
            before = {v.name: effective(held, v) for v in meta.variables}
            feed, loss = loss_of(held.meta)
            known = set(tf1.global_variables())
            variables = chosen and [v for v in tf1.global_variables() if v.op.name in chosen]
            optimizer = make_optimizer(name)
            optimizer._name += "New"
            step = optimizer.minimize(held.graph.get_tensor_by_name(loss), var_list=variables)
            held.run(tf1.variables_initializer([v for v in tf1.global_variables() if v not in known]))
            for _ in range(5):
                held.run(["train", step] if after_old else step, feed)
            for variable in frozen:
                after = effective(held, variable)
                assert_bits_equal(variable.region.take(after), variable.region.take(before[variable.name]), name)
            assert np.any(effective(held, meta.variables[0]) != before["fc1/weights"])
