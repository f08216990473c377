"""What a user sees, and what a program reads."""

import json

import pytest

from graphfreeze.comparison import Change, Difference
from graphfreeze.planning.plan import Plan
from tests.cli import standing_in
from tests.cli.standing_in import TABLE, TOTALS, WARNING, plan_value, run


def test_inspect_output(api):
    result = run("inspect", "M")
    assert result.stdout == (
        "meta graph: serve (TF2)\n"
        "signatures: serving_default\n"
        "\n"
        "variable\n"
        "  shape   dtype    kind    trainable  reads  writes  frozen / total  strategy\n"
        "  ------  -------  ------  ---------  -----  ------  --------------  --------\n"
        "dense/kernel\n"
        "  (4, 8)  float32  weight  yes            1       0         32 / 32  stop\n"
        "\n" + TOTALS
    )
    assert result.stderr == ""


def test_plan_output(api):
    result = run("plan", "M")
    assert result.stdout == TABLE
    assert result.stderr == f"warning: {WARNING}\n"


def test_rewrite_output(api):
    result = run("rewrite", "M", "O")
    assert result.stdout == TABLE
    assert result.stderr == f"warning: {WARNING}\nwrote O\n"


def test_finalize_output(api):
    result = run("finalize", "T", "O")
    assert result.stdout == "restored 2 variables\n"
    assert result.stderr == f"warning: {WARNING}\nwrote O\n"
    assert run("finalize", "T", "O", "-v").stdout == "restored 2 variables:\n  dense/kernel\n  dense/bias\n"


def test_diff_output(api):
    result = run("diff", "A", "A")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "The models are equal.\nfrozen elements changed: 0 of 32\n"
    result = run("diff", "A", "B", columns="60")
    assert result.exit_code == 10
    assert (
        result.stdout
        == """\
+ node __inference_f_1/dense/MatMul: MatMul
~ flag dense/bias: x -> y
~ value dense/kernel: 8 of 32 elements, by up to 0.0125

differences: 1 node, 1 flag, 1 variable value
frozen elements changed: 1 of 24
  dense/bias: 1 of 8 elements, by up to 0.5
"""
    )
    assert result.stderr == "warning: 'keras_metadata.pb' is left out: load_model would\nignore the freeze\n"
    result = run("diff", "A", "B", "-q")
    assert result.exit_code == 10
    assert result.stdout.startswith("differences: 1 node")


def test_diff_is_short_unless_asked(api, monkeypatch):
    many = tuple(Change("node", "removed", f"n{i}") for i in range(11))
    monkeypatch.setattr(standing_in, "DIFFERENT", Difference("A", "B", many, (), None))
    shown = run("diff", "A", "B").stdout
    assert shown.count("- node") == 8
    assert "... and 3 more nodes; -v shows all." in shown
    assert run("diff", "A", "B", "-v").stdout.count("- node") == 11


def test_checkpoint_output(api):
    result = run("checkpoint", "C", "--into", "R", "-o", "N")
    assert (
        result.stdout
        == """\
converted for the rewritten model: 2 frozen variables, 2 optimizer slots
unchanged: 9 tensors
slots left out, because it does not train any more: 'dense/bias'
"""
    )
    assert result.stderr == f"warning: {WARNING}\nwrote N\n"
    assert "frozen: dense/kernel\n" in run("checkpoint", "C", "--into", "R", "-o", "N", "-v").stdout
    result = run("checkpoint", "C", "--into", "R", "-o", "N", "-q")
    assert (result.stdout, result.stderr) == ("", f"warning: {WARNING}\n")


def test_quiet_keeps_totals_and_warnings(api):
    assert run("inspect", "M", "-q").stdout == TOTALS
    assert run("plan", "M", "--quiet").stdout == TOTALS
    for command in ("rewrite", "finalize"):
        result = run(command, "M", "O", "-q")
        assert result.stdout == ""
        assert result.stderr == f"warning: {WARNING}\n"


def test_verbose_lists_reads(api):
    shown = run("plan", "M", "-v").stdout
    assert "    read full: ReadVariableOp 'MatMul/ReadVariableOp' in '__inference_f_1'\n" in shown


@pytest.mark.parametrize("command", ["inspect", "plan", "rewrite"])
def test_json_is_the_plan_and_nothing_else(api, command):
    result = run(command, "M", *["O"] * (command == "rewrite"), "--json", "-q")
    data = json.loads(result.stdout)
    assert data == plan_value(command).to_dict()
    assert Plan.from_dict(data) == plan_value(command)
    assert {"schema", "command", "model", "meta_graphs", "warnings"} <= data.keys()
    assert data["schema"] == 1
    (meta,) = data["meta_graphs"]
    assert {"tags", "signatures", "variables"} <= meta.keys()
    (variable,) = meta["variables"]
    keys = "name path key dtype shape kind trainable elements bytes frozen strategy reason reads writes optimizer_bytes"
    assert set(keys.split()) <= variable.keys()
    assert variable["reads"][0].keys() == {"function", "node", "op", "access"}
    assert variable["optimizer_bytes"] == {"before": 256, "after": 0}


def test_json_of_finalize(api):
    assert json.loads(run("finalize", "T", "O", "--json").stdout) == {
        "schema": 1,
        "command": "finalize",
        "model": "T",
        "out": "O",
        "variables": ["dense/kernel", "dense/bias"],
        "warnings": [WARNING],
    }


def test_json_of_diff(api):
    result = run("diff", "A", "B", "--json")
    assert result.exit_code == 10
    assert json.loads(result.stdout) == {
        "schema": 1,
        "command": "diff",
        "a": "A",
        "b": "B",
        "equal": False,
        "changes": [
            {"subject": "node", "what": "added", "name": "__inference_f_1/dense/MatMul", "detail": "MatMul"},
            {"subject": "flag", "what": "changed", "name": "dense/bias", "detail": "x -> y"},
        ],
        "values": [{"name": "dense/kernel", "key": "k", "elements": 32, "changed": 8, "largest": 0.0125}],
        "frozen": {
            "elements": 24,
            "changed": 1,
            "variables": [{"name": "dense/bias", "key": "", "elements": 8, "changed": 1, "largest": 0.5}],
        },
        "warnings": [WARNING],
    }
    assert json.loads(run("diff", "A", "A", "--json").stdout)["equal"] is True


def test_json_of_checkpoint(api):
    assert json.loads(run("checkpoint", "C", "--into", "R", "-o", "N", "--json").stdout) == {
        "schema": 1,
        "command": "checkpoint",
        "model": "R",
        "checkpoint": "C",
        "out": "N",
        "direction": "into",
        "variables": ["dense/kernel", "dense/bias"],
        "slots": {"converted": 2, "dropped": ["dense/bias"], "added": []},
        "unchanged": 9,
        "differing": {"dense/kernel": 4},
        "warnings": [WARNING],
    }
