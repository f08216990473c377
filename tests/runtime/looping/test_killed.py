"""A run that is killed (-9) at any moment and started again ends as one that was never interrupted, to the last bit."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graphfreeze
from graphfreeze.savedmodel import OBJECT_GRAPH_KEY, open_checkpoint, open_draft
from tests.conftest import MODELS

pytestmark = pytest.mark.tf

FULL = os.environ.get("GRAPHFREEZE_FULL") == "1"
KILLS = 10 if FULL else 3
ROOT = MODELS.parents[1]
STEPS = 28
"""Two epochs of 14 batches."""


def moments(seed):
    """Ever later steps; every kind of moment in turn."""
    chosen = random.Random(seed)
    kinds = [
        lambda step: {"step": step},
        lambda step: {"step": step, "touch": chosen.randint(1, 25)},
        lambda step: {"step": step, "after": chosen.uniform(0.0, 0.05)},
    ]
    steps = sorted(chosen.sample(range(1, STEPS), KILLS))
    return [kinds[i % 3](step) for i, step in enumerate(steps)]


def tensors(bundle):
    """All but the object graph, in which TensorFlow numbers functions as they come."""
    return {key: np.asarray(bundle.read_tensor(key)) for key in bundle.entries if key != OBJECT_GRAPH_KEY}


def same(one, other):
    assert one.keys() == other.keys()
    return [key for key in one if one[key].dtype != other[key].dtype or one[key].tobytes() != other[key].tobytes()]


def last_checkpoint(folder):
    newest = max(folder.glob("checkpoint-*"))
    return open_checkpoint(newest / "checkpoint"), json.loads((newest / "state.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw(learning_rate=0.01)", *(["sgd(momentum=0.9)"] if FULL else [])])
def test_killed_and_started_again(tmp_path, optimizer):
    frozen = tmp_path / "frozen"
    graphfreeze.rewrite(MODELS / "digits", frozen, freeze=["sequential/trunk_conv_1/*", "sequential/head/*[..., :7]"])
    numbers = np.random.default_rng(0)
    np.savez(
        tmp_path / "data.npz",
        pixels=numbers.random((110, 8, 8, 1), np.float32),
        targets=numbers.integers(0, 10, 110),
    )

    def job(run, moment=None):
        arguments = {
            "model_dir": str(frozen),
            "dataset": str(tmp_path / "data.npz"),
            "columns": {"image": "pixels"},
            "out": str(tmp_path / run / "out"),
            "phases": 2,
            "function": "train",
            "loss": "sparse-cross-entropy",
            "optimizer": optimizer,
            "batch": 8,
            "checkpoint_dir": str(tmp_path / run / "checkpoints"),
            "checkpoint_every": 3,
        }
        return {"arguments": arguments, "moment": moment, "report": str(tmp_path / f"{run}.json")}

    at = moments(optimizer)
    jobs = [job("whole"), *(job("killed", moment) for moment in at), job("killed")]
    statuses = run_jobs(jobs, tmp_path)
    assert [os.waitstatus_to_exitcode(s) for s in statuses] == [0, *[-signal.SIGKILL] * KILLS, 0], at
    one, other = (json.loads((tmp_path / f"{run}.json").read_text()) for run in ("whole", "killed"))
    assert (one["resumed_from"], one["steps"], other["steps"]) == (None, STEPS, STEPS)
    assert 0 < other["resumed_from"] < STEPS
    assert one["epochs"] == other["epochs"]
    (first, state), (second, other_state) = (last_checkpoint(tmp_path / r / "checkpoints") for r in ("whole", "killed"))
    assert same(tensors(first), tensors(second)) == []
    assert state["state"] == other_state["state"]
    values = [tensors(open_draft(tmp_path / r / "out").model.bundle) for r in ("whole", "killed")]
    assert same(*values) == []
    moved = same(values[0], tensors(open_draft(frozen).model.bundle))
    assert len(moved) == 5, moved  # conv_2, both parts of the head, and the state of the dropout
    held = graphfreeze.diff(frozen, tmp_path / "whole" / "out").frozen
    assert (held.changed, held.elements) == (0, 72 + 8 + 448 + 7)
    left = [p.name for p in (tmp_path / "killed" / "checkpoints").iterdir()]
    assert sorted(p for p in left if p != ".lock") == sorted(left)[-3:]


def run_jobs(jobs, folder: Path):
    file = folder / "jobs.json"
    file.write_text(json.dumps(jobs))
    command = [sys.executable, "-m", "tests.helpers.killed", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
