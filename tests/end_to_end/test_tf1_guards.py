"""TF1 graphs that train themselves: their own train ops leave frozen elements alone, and train the rest as they should.

Everything is compared with a graph built by hand (``tf1_steps``), in a Session, from warm slots.
"""

import numpy as np
import pytest

import graphfreeze
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


@pytest.mark.parametrize(("region", "kind"), CASES if FULL else CASES[::3])
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
        for step in range(STEPS):
            held.run(train, tf1_steps.feed_of(step))
            oracle.step(train, tf1_steps.feed_of(step))
        seen = [*tf1_steps.fetched(held, list(shapes)), tf1_steps.stored(held, tmp_path, shapes)]
    expected = oracle.values()
    for name, mask in masks.items():
        for values in seen:
            assert_bits_equal(values[name][mask], oracle.start[name][mask], name)
            assert_within_eps(values[name], expected[name], name)
        moved = expected[name] != oracle.start[name]
        assert (moved & ~mask).sum() >= 0.7 * (~mask).sum(), name


NORM_CASES = [(index, kind) for index in ("[:2]", "[..., :2]", "") for kind in KINDS]


@pytest.mark.parametrize(("index", "kind"), NORM_CASES if FULL else NORM_CASES[::3] + NORM_CASES[1::4])
def test_frozen_elements_do_not_count_in_norms(index, kind, tmp_path):
    """G4 where gradients are clipped, added up, scaled or checked before they are applied."""
    from tests.end_to_end import tf1_steps
    from tests.helpers.sessions import Model

    resource = kind == "resource"
    train = [f"{n}/train" for n in tf1_steps.NORMS]
    feed = {s: {"x:0": tf1_steps.feed_of(s)["x:0"]} for s in range(30)}
    tf1_steps.save_trained(tmp_path, tf1_steps.build_norms, train, feed.get, resource=resource)
    # A tensor of two variables is masked for one of them.
    masks = {n: mask_of(index, s) for n, s in tf1_steps.NORMED.items() if n != "shared/b"}
    plan = graphfreeze.rewrite(
        tmp_path / "model", tmp_path / "out", freeze=[f"{n}{index}" for n in masks], allow_empty=True
    )
    told = {v.name: [w.gradient for w in v.writes] for v in plan.meta_graphs[0].variables if v.name in masks}
    assert all("masked at" in found for gradients in told.values() for found in gradients), told
    oracle = tf1_steps.Oracle(
        tmp_path,
        tf1_steps.build_norms,
        masks | {"shared/b": np.zeros((8, 6), bool)},
        resource=resource,
    )
    with Model(tmp_path / "out", ["train"]) as model:
        for step in range(STEPS):
            model.run(train, feed[step])
            oracle.step(train, feed[step])
        own, seen, read = tf1_steps.fetched(model, list(oracle.masks))
    expected = oracle.values()
    for name, mask in oracle.masks.items():
        for values in (own, seen, read):
            assert_bits_equal(values[name][mask], oracle.start[name][mask], name)
            assert_within_eps(values[name], expected[name], name)
        if not mask.all():
            assert np.any(expected[name] != oracle.start[name]), name
