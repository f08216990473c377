"""``graphfreeze phases``, on a real model."""

import json

import pytest

import graphfreeze
from graphfreeze.report import phases as rendering
from tests.cli.standing_in import run
from tests.conftest import MODELS

SPEC = """
train = "dense/*"
[[phase]]
name = "head"
[[phase]]
name = "rows"
train = "emb/embeddings[:5]"
loss = "other"
"""


@pytest.fixture
def model(tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC)
    graphfreeze.rewrite(MODELS / "embedding", tmp_path / "out", spec=tmp_path / "spec.toml")
    return tmp_path / "out"


TABLE = """\
phase  trainable params  variables  Adam bytes  loss   functions
-----  ----------------  ---------  ----------  -----  --------------------------------------
head                 15          2       120 B  -      __call__, signature serving_default@head
rows                 35          3       280 B  other  __call__, signature serving_default@rows
"""


def test_the_table(model):
    result = run("phases", str(model), columns="200")
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()[2:]] == [
        line.split() for line in TABLE.splitlines()[2:]
    ]
    assert max(map(len, run("phases", str(model), columns="40").stdout.splitlines())) <= 40
    assert run("phases", str(model), "-q").stdout == "head\nrows\n"
    verbose = run("phases", str(model), "-v").stdout
    assert "trains emb/embeddings/graphfreeze/trainable\n" in verbose
    assert rendering.render_phases(graphfreeze.phases(model), width=None)


def test_json(model):
    result = json.loads(run("phases", str(model), "--json").stdout)
    assert {k: result[k] for k in ("schema", "command", "model")} == {
        "schema": 1,
        "command": "phases",
        "model": str(model),
    }
    (meta,) = result["meta_graphs"]
    assert (meta["tags"], meta["format"]) == (["serve"], "TF2")
    assert meta["phases"][1] == {
        "name": "rows",
        "loss": "other",
        "trainable": 35,
        "optimizer_bytes": 280,
        "variables": ["emb/embeddings/graphfreeze/trainable", "dense/kernel", "dense/bias"],
        "functions": ["__call__", "signature serving_default@rows"],
    }


def test_plan_and_inspect_show_phases(model):
    spec = str(model.parent / "spec.toml")
    assert "rows" in run("plan", str(MODELS / "embedding"), "--spec", spec).stdout
    shown = run("inspect", str(model), columns="200").stdout
    assert "head                 15" in shown
    assert "train 'dense/*', phases 'head', 'rows'" in shown


def test_a_model_without_phases():
    result = run("phases", str(MODELS / "embedding"))
    assert result.exit_code == 2
    assert "has no phases. Phases are [[phase]] tables of a spec file" in " ".join(result.stderr.split())
