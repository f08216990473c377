"""Trained and saved by a process that has no graphfreeze (G9); then every function equals what finalize makes of it."""

import numpy as np
import pytest

import graphfreeze
from tests.conftest import MODELS
from tests.end_to_end import cases
from tests.end_to_end.processes import check_all, elsewhere

pytestmark = pytest.mark.tf

CASES = [
    {"fixture": fixture, "kind": kind, "strategy": strategy, "choice": choice}
    for fixture, kind, strategy, choice in (
        ("embedding", "rows", "split", "all"),
        ("mlp", "points", "mask", "all"),
        ("keras_gru", "whole", "stop", "even"),
        ("keras_conv", "columns", "split", "all"),
        ("tied", "rows", "live", "even"),
        ("unnamed", "strict", "auto", "odd"),
        ("loop", "columns", "split", "even"),
        ("scan", "dense mask", "mask", "all"),
        ("strings", "row list", "split", "all"),
        ("shared_function", "box", "auto", "odd"),
        ("digits", "columns", "auto", "all"),
        ("layer_norm_transformer", "rows", "auto", "all"),
        ("dtypes", "columns", "mask", "all"),
        ("keras_mixed", "rows", "auto", "all"),
        ("statistics", "rows", "auto", "even"),
    )
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """By test id: the plan, the folder, and the answers of the two other processes."""
    root = tmp_path_factory.mktemp("after_training")
    plans, train_jobs, compare_jobs = [], [], []
    for number, case in enumerate(CASES):
        folder = root / cases.label(case)
        plans.append(cases.rewrite(case, folder / "out"))
        job = {
            "model": str(folder / "out"),
            "fixture": case["fixture"],
            "optimizer": "momentum" if case["fixture"] == "dtypes" else "adam",
            "mode": ("eager", "function")[number % 2],
            "out": str(folder / "trained"),
            "signatures": number % 3 != 0,
        }
        train_jobs.append(job)
        compare_jobs.append({"model": str(folder / "trained"), "plain": str(folder / "plain")})
    answers = elsewhere("train", train_jobs, root)
    for answer, job in zip(answers, compare_jobs, strict=True):
        if "error" not in answer:
            graphfreeze.finalize(job["model"], job["plain"])
    compared = elsewhere("compare", [j for j, a in zip(compare_jobs, answers, strict=True) if "error" not in a], root)
    found = iter(compared)
    return {
        cases.label(case): (plan, root / cases.label(case), answer, None if "error" in answer else next(found))
        for case, plan, answer in zip(CASES, plans, answers, strict=True)
    }


def test_trains_without_graphfreeze_and_finalize_is_the_same_model(trained):
    by_label = {cases.label(case): case for case in CASES}
    check_all(by_label, lambda name: check_trained(by_label[name], *trained[name]))


def check_trained(case, plan, folder, answer, compared):
    from tests.end_to_end.runs import load
    from tests.helpers.variables import trainable_of, variables_by_path

    assert "error" not in answer, answer["error"]
    assert all(answer["moved"])
    held = load(folder / "out")
    assert answer["variables"] == [v.name for v in graphfreeze.trainable_variables(held)]
    assert len(answer["variables"]) == len(trainable_of(held))
    assert "error" not in compared, compared["error"]
    # Without signatures=, tf.saved_model.save keeps none; a plain model has one by default.
    assert [name for name in compared["only"] if not name.startswith("signature ")] == []
    assert compared["shared"]
    before, after = load(MODELS / case["fixture"]), variables_by_path(load(folder / "plain"))
    for variable in plan.meta_graphs[0].variables:
        if variable.strategy is not None:
            frozen = variable.region.to_mask()
            old, new = (
                np.asarray(found.numpy()) for found in (variables_by_path(before)[variable.path], after[variable.path])
            )
            assert np.array_equal(new[frozen], old[frozen])
            assert frozen.all() or (new[~frozen] != old[~frozen]).any()
