"""What stands around a write after a rewrite."""

import numpy as np
import pytest

from graphfreeze.graph.attrs import ADDED, GUARDED, SILENCED
from graphfreeze.planning.guards import Guard, guard_of
from graphfreeze.selection import box_region, mask_region, points_region, rows_region, whole_region
from tests.passes.rewriting import rewritten

SHAPE = (20, 10)


@pytest.mark.parametrize(
    ("region", "guard"),
    [
        (whole_region(SHAPE), Guard.NOTHING),
        (box_region(SHAPE, [slice(0, 10)]), Guard.BOX),
        (box_region(SHAPE, [slice(0, 11)]), Guard.SELECT),
        (box_region(SHAPE, [slice(None), slice(2, 4)]), Guard.BOX),
        (rows_region(SHAPE, 0, np.array([0, 2, 3])), Guard.ROWS),
        (rows_region(SHAPE, 1, np.array([0, 2, 3])), Guard.SELECT),
        (points_region(SHAPE, [3, 50]), Guard.POINTS),
        (points_region(SHAPE, [3, 50, 77]), Guard.SELECT),
        (mask_region(np.random.default_rng(0).random(SHAPE) < 0.3), Guard.SELECT),
    ],
)
def test_the_guard_follows_the_region(region, guard):
    assert guard_of(region, "ResourceApplyAdam", 0) is guard


@pytest.mark.parametrize(
    ("region", "guard"),
    [
        (whole_region(SHAPE), Guard.NOTHING),
        (box_region(SHAPE, [slice(0, 11)]), Guard.BOX),
        (rows_region(SHAPE, 0, np.array([0, *range(2, 14)])), Guard.ROWS),
        (rows_region(SHAPE, 1, np.array([0, 2, 3])), Guard.POINTS),
        (points_region(SHAPE, [3, 50, 77]), Guard.POINTS),
        (mask_region(np.random.default_rng(0).random(SHAPE) < 0.3), Guard.POINTS),
    ],
)
def test_beside_another_write_nothing_but_frozen_elements_is_written(region, guard):
    assert guard_of(region, "AssignSub", 0, shared=True) is guard


@pytest.mark.parametrize(
    ("op", "index"), [("ResourceApplyAdam", 1), ("RngReadAndSkip", 0), ("StatefulUniformInt", 0), ("SdcaShrinkL1", 0)]
)
def test_an_op_that_does_more_than_write_goes_on_running(op, index):
    assert guard_of(whole_region(SHAPE), op, index) is Guard.WHOLE


def body(done, stem="train"):
    """The nodes of a changed function; of its variants, if there are several, any will do."""
    function = next(f for f in done.functions(stem) if not f.signature.name.startswith("__inference_train_rows"))
    return {node.name: node for node in function.node_def}


def test_who_waited_for_the_write_waits_for_its_guard():
    done = rewritten("train_ops", "tables/momentum[1:3]")
    nodes = body(done)
    (inner,) = [n for n in nodes.values() if GUARDED in n.attr]
    name = inner.attr[GUARDED].s.decode()
    assert inner.op == "ResourceApplyMomentum"
    restore = nodes[name]
    assert restore.op == "ResourceStridedSliceAssign"
    assert ADDED in restore.attr
    assert f"^{inner.name}" in restore.input
    (old,) = [t for t in inner.input if t.startswith(f"^{name}/graphfreeze/")]
    assert nodes[old[1:]].op == "ResourceGather"
    # What is put back is read after everything that the write itself waits for.
    waited = {t for t in inner.input if t.startswith("^")} - {old}
    assert waited <= set(nodes[old[1:]].input)


def test_a_whole_variable_is_not_written_and_its_slots_are_left_alone():
    done = rewritten("train_keras", "kernel")
    silent = {n.name: n for n in body(done).values() if SILENCED in n.attr}
    assert {n.op for n in silent.values()} == {"NoOp"}
    assert not [t for n in silent.values() for t in n.input if not t.startswith("^")]
    # Update, decay; momentum and velocity. The average of the weight goes on: nothing else tells it that all is still.
    assert len(silent) == 4


def test_slots_of_what_still_trains_go_on():
    done = rewritten("train_keras", "table")
    trace_slots = [v.path for v in done.plan.meta_graphs[0].variables if v.kind == "state" and v.shape == (6, 3)]
    assert len(trace_slots) == 3
    silent = [n.name for n in body(done).values() if SILENCED in n.attr]
    assert len(silent) == 4


def test_statistics_are_held_by_guards_alone():
    done = rewritten("statistics", "moving_mean", "average[0]", allow_empty=True)
    added = [n for f in done.functions("") for n in f.node_def if ADDED in n.attr]
    assert {n.op for n in added if "/graphfreeze/" not in n.name} == {"ResourceStridedSliceAssign"}
    assert not [n for n in added if n.op in ("StopGradient", "SelectV2")]
    assert {v.path: v.strategy for v in done.plan.meta_graphs[0].touched()} == {
        "moving_mean": "stop",
        "average": "mask",
    }
    assert not done.after.put.keys() - {"_CHECKPOINTABLE_OBJECT_GRAPH"}


def test_writes_wait_for_the_lookups_that_stand_for_a_read():
    """Else a step may look up what it has just written: the lookup of the source is not the one that counts."""
    for name in ("train_keras", "train_tf_keras", "train_loop"):
        nodes = body(rewritten(name, "table[:5]"))
        reads = [n for n in nodes.values() if n.op == "ResourceGather" and ADDED in n.attr]
        handle = next(n.input[0] for n in nodes.values() if n.name == "Gather")
        ours = [n.name for n in reads if n.input[0] == handle and n.name.startswith("Gather/")]
        assert ours
        waiting = [n for n in nodes.values() if "^Gather" in n.input]
        assert waiting
        assert all(f"^{read}" in n.input for n in waiting for read in ours)
