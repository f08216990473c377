"""Every real SavedModel and every fixture: outcomes as pinned, and the promises on all that can be rewritten."""

import json
import os
import subprocess
import sys

import pytest

from graphfreeze.savedmodel import open_draft, slot_variables
from tests.conftest import MODELS
from tests.helpers.expected import CASES, model_paths, outcome, pinned, read_weights
from tests.helpers.shared_models import EXPECTED_COUNT, require_shared_models, shared_model, shared_model_names

FULL = os.environ.get("GRAPHFREEZE_FULL") == "1"
PINNED = pinned()
PATHS = {(table, name): path for table, name, path in model_paths()}


def rewritable():
    """Real models of which at least one case is pinned to succeed."""
    found = {}
    for name in shared_model_names():
        expected = PINNED["shared"].get(name, {})
        if any(expected.get(case, {}).get("exit") == 0 for case in CASES):
            found[name] = expected
    return found


# What TensorFlow 2.21 itself cannot load, rewritten or not, and whether its TF1 loader can.
NOT_LOADED = {
    "tfagents-dice": "v1",  # a TypeSpec that only tensorflow_probability registers
    "tf24-uninitializedvariable": "none",  # ships without variables
    "tf24-fuzz_generated-negative_shape": "none",  # a constant of a negative shape
    "tfx-benchmarks-chicago_taxi-trained_saved_model": "none",  # an op without a kernel, BoostedTreesBucketize
}


def has_slots(name):
    meta = open_draft(shared_model(name)).model.proto.meta_graphs[0]
    return any(True for _ in slot_variables(meta.object_graph_def))


SLOTS = [name for name in rewritable() if has_slots(name)]
LOADED = [name for name in rewritable() if name not in SLOTS and NOT_LOADED.get(name) != "none"]


def test_as_many_models_as_are_listed():
    require_shared_models()
    assert len(PINNED["shared"]) == EXPECTED_COUNT
    assert sorted(PINNED["shared"]) == shared_model_names()


def test_as_many_fixtures_as_are_listed():
    assert sorted(PINNED["fixtures"]) == sorted(path.name for path in MODELS.iterdir())


@pytest.mark.parametrize(("table", "name"), [(table, name) for table in PINNED for name in PINNED[table]])
def test_outcome_is_as_pinned(table, name):
    if table == "shared":
        require_shared_models()
    assert outcome(PATHS[table, name]) == PINNED[table][name] | {
        key: PINNED[table][name].get(key, {})
        for key in ("variables", "reads", "writes")
        if PINNED[table][name]["inspect"] == 0
    }


def test_the_file_says_something():
    """A pinned outcome of nothing would pass for ever."""
    exits = [c["exit"] for models in PINNED.values() for m in models.values() for k in CASES if (c := m.get(k))]
    assert exits.count(0) > 80
    assert {m["inspect"] for models in PINNED.values() for m in models.values()} == {0}


@pytest.mark.tf
@pytest.mark.parametrize("name", LOADED)
def test_promises(name, tmp_path):
    from tests.helpers.real_models import cases_of, check_model

    done = {}
    for case in cases_of(name):
        (tmp_path / case).mkdir()
        done[case] = check_model(shared_model(name), case, tmp_path / case, objects=name not in NOT_LOADED)
    assert_as_many_as_pinned(name, done)


# Gradients through every function of every layer of these take minutes.
OBJECTS = [n for n in LOADED if PINNED["shared"][n]["format"] == ["TF2"]]  # verify is for models with an object graph
SLOW_TO_VERIFY = ("scisharp-lstm_from_sequential", "cppflow-multi_input_output", "eat30-linear_model")


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in OBJECTS if FULL or n not in SLOW_TO_VERIFY])
def test_verify(name, tmp_path):
    """After the promises, which are checked without it, ``verify`` says the same."""
    from tests.helpers.judging import quick_functions
    from tests.helpers.real_models import verified_differences

    with quick_functions():
        assert verified_differences(shared_model(name), tmp_path) == []


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in SLOTS if FULL] or SLOTS[1:2])
def test_verify_of_models_with_slots(name, tmp_path):
    """In its own process, which starts tf_keras by itself."""
    import graphfreeze
    from tests.helpers.expected import selectors

    path = shared_model(name)
    graphfreeze.rewrite(path, tmp_path / "out", freeze=selectors(graphfreeze.inspect(path), "slice"), allow_empty=True)
    report = graphfreeze.verify(path, tmp_path / "out", steps=2)
    assert report.training[0].moved
    assert "ok" in {f.poison for f in report.functions}


@pytest.mark.tf
@pytest.mark.slow
def test_promises_of_models_with_slots():
    """In a process of its own, where tf_keras comes first: only that knows the optimizers of Keras 2."""
    require_shared_models()
    command = [sys.executable, "-m", "tests.helpers.real_models", *SLOTS]
    root = MODELS.parents[1]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=900)
    assert ran.returncode == 0, ran.stderr[-2000:]
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert [line for line in lines if isinstance(line["result"], str)] == []
    assert len(SLOTS) > 2
    for name in SLOTS:
        assert_as_many_as_pinned(name, {line["case"]: line["result"] for line in lines if line["model"] == name})


TRAINED_IN_GRAPH = [
    name
    for name in shared_model_names()
    if any("Apply" in op for op in PINNED["shared"][name].get("writes", {}))
    and "TF1" in PINNED["shared"][name]["format"]
]


def test_some_graphs_hold_their_optimizer():
    require_shared_models()
    assert len(TRAINED_IN_GRAPH) == 4


@pytest.mark.tf
@pytest.mark.parametrize("case", ["slice", "whole"])
@pytest.mark.parametrize("name", TRAINED_IN_GRAPH)
def test_graphs_train_themselves(name, case, tmp_path):
    """Their own update ops, by name, against the original in which frozen elements are put back after every step."""
    import numpy as np

    import graphfreeze
    from tests.helpers.compare import assert_bits_equal, assert_within_eps
    from tests.helpers.finalized import finalized_differences
    from tests.helpers.sessions import Model, placeholders_behind

    path = shared_model(name)
    weights = [v for v in graphfreeze.inspect(path).meta_graphs[0].variables if v.kind == "weight"]
    rows = {v.name: bool(v.shape) and v.shape[0] > 1 and case == "slice" for v in weights}
    some = weights if case == "slice" else weights[:1]
    frozen = {v.name: np.s_[:1] if rows[v.name] else ... for v in some if rows[v.name] or v is weights[0]}
    chosen = [f"{n}[:1]" if rows[n] else n for n in frozen]
    tags = graphfreeze.rewrite(path, tmp_path / "out", freeze=chosen).meta_graphs[0].tags
    with Model(path, tags) as plain, Model(tmp_path / "out", tags) as held:
        steps = [op.name for op in plain.graph.get_operations() if "Apply" in op.type]
        start, names = plain.values(frozen), [v.name for v in weights]
        before = plain.values(names)
        for step in range(3):
            feed = placeholders_behind(plain, steps, seed=step)
            plain.run([plain.graph.get_operation_by_name(s) for s in steps], feed)
            held.run([held.graph.get_operation_by_name(s) for s in steps], feed)
            now = plain.values(frozen)
            for n, index in frozen.items():
                now[n][index] = start[n][index]
            plain.assign_all(now)
        after, expected = held.values(names), plain.values(names)
    for n in names:
        if n in frozen:
            assert_bits_equal(after[n][frozen[n]], start[n][frozen[n]], n)
        assert_within_eps(after[n], expected[n], n)
    assert any(np.any(expected[n] != before[n]) for n in names)
    graphfreeze.finalize(tmp_path / "out", tmp_path / "plain")
    assert finalized_differences(tmp_path / "plain", path) == []


@pytest.mark.parametrize("name", [n for n, loader in NOT_LOADED.items() if loader == "none"])
def test_finalize_of_a_model_that_cannot_be_loaded(name, tmp_path):
    import graphfreeze
    from tests.helpers.finalized import finalized_differences

    path = shared_model(name)
    weights = read_weights(graphfreeze.inspect(path))
    graphfreeze.rewrite(path, tmp_path / "out", freeze=[w.path for w in weights], allow_empty=True)
    graphfreeze.finalize(tmp_path / "out", tmp_path / "plain")
    assert finalized_differences(tmp_path / "plain", path) == []


def assert_as_many_as_pinned(name, done):
    expected = PINNED["shared"][name]
    for case, count in done.items():
        outcome = expected.get("whole" if case == "strict" else "slice" if case == "mask" else case, {})
        assert count == sum(n for key, n in outcome.items() if key not in ("exit", "reads")), case
