"""The README is true: its blocks run in order, its outputs, tables and map are those of the code."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import graphfreeze
from graphfreeze import errors
from graphfreeze.selection import Copy, Strategy, parse_selector, read_spec
from tests.conftest import MODELS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
WORDS = ("nothing", "frozen", "trainable", "all")


def table(first_header):
    """The rows of the table whose first header cell says this, without header."""
    lines = iter(README.splitlines())
    for line in lines:
        if line.startswith(f"| {first_header} |"):
            next(lines)
            rows = []
            for row in lines:
                if not row.startswith("|"):
                    return rows
                rows.append([cell.strip() for cell in row.strip("|").split("|")])
    raise AssertionError(f"README has no table '{first_header}'")


def code(cell):
    return re.findall(r"`([^`]+)`", cell)


def run_bash(block, folder):
    """What a block prints on stdout; ``graphfreeze`` is this checkout's."""
    command = folder / "bin" / "graphfreeze"
    if not command.exists():
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m graphfreeze "$@"\n')
        command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment.pop("COLUMNS", None)
    done = subprocess.run(
        ["bash", "-euc", block], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{block}\n{done.stderr}"
    return done.stdout


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_blocks_run_in_order(tmp_path, monkeypatch):
    for model in sorted(set(re.findall(r"fixtures/models/(\w+)", README))):
        shutil.copytree(MODELS / model, tmp_path / "fixtures" / "models" / model)
    monkeypatch.chdir(tmp_path)
    names, shown = {}, ""
    kinds = [kind for kind, _ in BLOCKS]
    assert kinds.count("bash") >= 5
    assert kinds.count("python") >= 3
    for kind, block in BLOCKS:
        if kind == "bash":
            shown = run_bash(block, tmp_path)
        elif kind == "python":
            exec(compile(block, "README.md", "exec"), names)
        elif kind == "text":
            assert block == shown


def test_the_spec_file_can_be_read(tmp_path):
    (block,) = (block for kind, block in BLOCKS if kind == "toml")
    (tmp_path / "freeze.toml").write_text(block)
    spec = read_spec(tmp_path / "freeze.toml")
    assert len(spec.rules) == 3
    assert graphfreeze.plan(MODELS / "digits", spec=tmp_path / "freeze.toml").meta_graphs[0].touched()


def test_every_selector_can_be_parsed():
    selectors = [text for row in table("selector") for text in code(row[0])]
    assert len(selectors) >= 15
    for text in selectors:
        parse_selector(text)


def test_points_are_points():
    (meta,) = graphfreeze.plan(MODELS / "unnamed", train="first[[0, 1], [0, 1]]").meta_graphs
    assert {v.path: v.elements - v.frozen for v in meta.variables} == {
        "first": 2,
        "second": 0,
        "pair/0": 0,
        "pair/1": 0,
    }


def test_strategies_are_those_that_exist():
    known = [s.value for s in Strategy if s is not Strategy.AUTO]
    first, second = (table_rows(header) for header in ("storage", "`assign` to the original changes"))
    assert [code(row[0])[0] for row in first] == known
    assert [code(row[0])[0] for row in second] == ["stop", "stop", "split", "mask", "mask"]
    assert set(re.findall(r"`mask`, (\w+)", README)) == {c.value for c in Copy}


def table_rows(second_header):
    """The rows of the table of strategies with this second header."""
    after = README.split(f"| strategy | {second_header} |", 1)[1].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in after[: after.index("")]]


def test_exit_codes_are_those_of_the_errors():
    expected = {
        cls.exit_code: name
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and errors.GraphfreezeError in cls.__bases__
    }
    rows = {int(row[0]): code(row[1]) for row in table("exit code")}
    assert {number: names[0] for number, names in rows.items() if names} == expected
    assert set(rows) == {0, 10, 130, *expected}


def test_functions_are_the_public_ones():
    named = [code(row[0])[0].partition("(")[0] for row in table("function")]
    classes = {n for n in graphfreeze.__all__ if n[0].isupper()}
    assert sorted(named) == sorted(set(graphfreeze.__all__) - classes)


def test_the_map_lists_every_part_of_the_package():
    parts = {f"graphfreeze/{p.parent.name}/" for p in (ROOT / "graphfreeze").glob("*/__init__.py")}
    parts |= {f"graphfreeze/{p.name}" for p in (ROOT / "graphfreeze").glob("*.py")} - {"graphfreeze/__init__.py"}
    listed = re.findall(r"^\|.*`graphfreeze/.*$", README.split("## Map")[1], re.MULTILINE)
    found = {name for line in listed for name in re.findall(r"`(graphfreeze/[^`]+)`", line.split("|")[1])}
    assert found == parts


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_figures_of_cost_are_the_measured_ones():
    """A new measurement goes into both files."""
    cost = README.split("## Cost")[1].split("\n## ")[0]
    measured = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    figures = [cell for row in table("step") for cell in row[1:]]
    figures += re.findall(r"\d+\.\d+(?= s)|\d+(?= (?:MB|MiB))", cost)
    assert len(figures) >= 12
    missing = [figure for figure in figures if not re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.])", measured)]
    assert not missing


# What a user's own code sees: each cell of the table, tried.

OPTIONS = {
    "`stop`": {"freeze": "w"},
    "`stop`, strict": {"freeze": "w", "strict": True},
    "`split`": {"freeze": "w[:2]"},
    "`mask`, snapshot": {"freeze": "w[:2]", "strategy": "mask"},
    "`mask`, live": {"freeze": "w[:2]", "strategy": "mask", "copy": "live"},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """``w`` (4, 3) read in full, saved twice: as it is, and with 100 added."""
    import numpy as np
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self):
            self.w = tf.Variable(np.arange(1, 13, dtype=np.float32).reshape(4, 3), name="w")
            self.b = tf.Variable(np.zeros(3, np.float32), name="b")

        @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
        def __call__(self, x):
            return x @ self.w + self.b

    folder = tmp_path_factory.mktemp("source")
    model = Model()
    tf.saved_model.save(model, str(folder / "model"))
    model.w.assign_add(tf.fill([4, 3], 100.0))
    tf.saved_model.save(model, str(folder / "other"))
    return folder


@pytest.mark.tf
@pytest.mark.parametrize("row", table_rows("`assign` to the original changes"), ids=lambda row: row[0])
def test_what_python_sees(source, tmp_path, row):
    import numpy as np
    import tensorflow as tf

    graphfreeze.rewrite(source / "model", tmp_path / "out", **OPTIONS[row[0]])
    frozen = np.arange(4)[:, None] < (4 if row[0].startswith("`stop`") else 2)
    regions = {"nothing": np.zeros((4, 3), bool), "frozen": frozen, "trainable": ~frozen, "all": np.ones((4, 3), bool)}

    def load():
        loaded = tf.saved_model.load(str(tmp_path / "out"))
        return loaded, list(getattr(loaded.graphfreeze, "variables", ()))

    def effective(loaded):
        """As the forward pass sees it; ``value`` must agree."""
        seen = loaded(tf.eye(4)).numpy()
        assert np.array_equal(graphfreeze.value(loaded, "w"), seen)
        return seen

    def assert_changes(word, action):
        loaded, new = load()
        before = effective(loaded)
        action(loaded, new)
        assert np.array_equal(effective(loaded) != before, np.broadcast_to(regions[word], (4, 3)))

    def assign_new(loaded, new):
        for variable in new:
            variable.assign(variable + 1.0)

    def decay(loaded, new):
        with tf.GradientTape() as tape:
            tape.watch(loaded.w)
            penalty = tf.nn.l2_loss(loaded.w)
        loaded.w.assign_sub(0.1 * tape.gradient(penalty, loaded.w))

    original, added, restored, counted, moved = row[1:]
    assert (added == "-") == (not load()[1])
    assert_changes(original, lambda loaded, new: loaded.w.assign(loaded.w + 1.0))
    assert_changes("nothing" if added == "-" else added, assign_new)
    checkpoint = str(source / "other" / "variables" / "variables")
    assert_changes(restored, lambda loaded, new: tf.train.Checkpoint(loaded).read(checkpoint).expect_partial())
    assert_changes(moved, decay)

    loaded, _ = load()
    for variable in graphfreeze.trainable_variables(loaded):
        if variable.name.startswith("w"):
            variable.assign(variable + 1.0)
    right = effective(loaded) == loaded.w.numpy()
    assert np.array_equal(right, np.broadcast_to(regions[counted], (4, 3)))
