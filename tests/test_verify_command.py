"""``graphfreeze verify``: what it calls, what it shows at several widths, how it ends."""

import json
import sys
import types
from pathlib import Path

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

import graphfreeze
from graphfreeze.cli.program import program
from graphfreeze.errors import VerificationError
from graphfreeze.report.verified import render_verified
from graphfreeze.runtime.verifying.results import Finding, FunctionResult, TrainingResult, VariableResult, Verified
from tests.conftest import MODELS

PASSED = Verified(
    "S",
    "R",
    False,
    ("a warning",),
    (FunctionResult("serve[0]", "ok", "ok", ("ok", "-")),),
    (
        VariableResult("emb/embeddings", 20, 28, True, 14, 0.0),
        VariableResult("dense/kernel", 0, 12, True, 12, None),
        VariableResult("unused", 0, 3, False, 0, None),
    ),
    (TrainingResult("adamw", "eager", 20, 20, 0.0, 43, 26, "ok"),),
    (Finding("forward", "ragged[0]", "not run", "nobody can make an input"),),
)
FAILED = Verified(
    "S",
    "R",
    True,
    functions=(FunctionResult("serve[0]", "failed", "ok", ("not run", "ok")),),
    findings=(Finding("forward", "serve[0]", "failed", "output 0: off"), Finding("flags", "w", "failed", "is wrong")),
)


@pytest.fixture
def api(monkeypatch):
    fake = types.ModuleType("graphfreeze.api")
    fake.calls, fake.result = [], PASSED

    def verify(*arguments, **options):
        fake.calls.append((arguments, options))
        if fake.result.failures:
            raise VerificationError(fake.result.first_offender, fake.result)
        return fake.result

    fake.verify = verify
    monkeypatch.setitem(sys.modules, "graphfreeze.api", fake)
    monkeypatch.setattr(graphfreeze, "api", fake, raising=False)
    return fake


def run(*arguments, columns="100"):
    return CliRunner().invoke(program(), arguments, prog_name="graphfreeze", env={"COLUMNS": columns, "NO_COLOR": "1"})


def test_what_is_called(api):
    assert run("verify", "S", "R").exit_code == 0
    given = ("--steps", "3", "--optimizer", "all", "--seed", "5", "--inputs", "s.npz")
    assert run("verify", "S", "R", *given).exit_code == 0
    rest = {"progress": None}
    assert api.calls == [
        ((Path("S"), Path("R")), {"steps": 20, "optimizer": "adamw", "seed": 0, "inputs": None, **rest}),
        ((Path("S"), Path("R")), {"steps": 3, "optimizer": "all", "seed": 5, "inputs": Path("s.npz"), **rest}),
    ]


def test_a_report(api):
    result = run("verify", "S", "R")
    assert result.stdout == (
        "compared with 'S'\n"
        "\n"
        "function  forward  poison  gradients  in tf.function\n"
        "--------  -------  ------  ---------  --------------\n"
        "serve[0]  ok       ok      ok         -\n"
        "\n"
        "variable        frozen  moved by  trainable   moved  note\n"
        "--------------  ------  --------  ---------  ------  --------------------------\n"
        "emb/embeddings      20         0         28  50.0 %\n"
        "unused               -         -          3   0.0 %  trainable, but unreachable\n"
        "\n"
        "training with  mode   steps  frozen  moved by  trainable   moved\n"
        "-------------  -----  -----  ------  --------  ---------  ------\n"
        "adamw          eager     20      20         0         43  60.5 %\n"
        "\n"
        "not run: forward of 'ragged[0]': nobody can make an input\n"
        "verified; 1 not run, for the reasons above\n"
    )
    assert result.stderr == "warning: a warning\n"


def test_quiet_and_verbose(api):
    assert run("verify", "S", "R", "-q").stdout == (
        "not run: forward of 'ragged[0]': nobody can make an input\nverified; 1 not run, for the reasons above\n"
    )
    assert "dense/kernel" in run("verify", "S", "R", "-v").stdout
    assert "dense/kernel" not in run("verify", "S", "R").stdout


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_screen(width):
    for report in (PASSED, FAILED):
        lines = [line.plain for line in render_verified(report, width=width, verbose=True)]
        assert max(map(cell_len, lines)) <= width
        assert "trainable, but unreachable" in " ".join(lines) or report is FAILED


def test_a_failure_shows_the_report_and_names_the_first_offender(api):
    api.result = FAILED
    result = run("verify", "S", "R")
    assert result.exit_code == 5
    assert "compared with what finalize makes of 'R', and frozen values with 'S'" in result.stdout
    assert (
        "failed: forward of 'serve[0]': output 0: off\nfailed: flags of 'w': is wrong\n2 checks failed" in result.stdout
    )
    assert result.stderr == "error: 'R' fails the check 'forward' of 'serve[0]': output 0: off (1 more failed)\n"


def test_json(api):
    data = json.loads(run("verify", "S", "R", "--json").stdout)
    assert data == json.loads(json.dumps(PASSED.to_dict()))
    assert (data["schema"], data["command"], data["passed"], data["trained"]) == (1, "verify", True, False)
    assert data["variables"][0] == {
        "name": "emb/embeddings",
        "frozen": 20,
        "trainable": 28,
        "reached": True,
        "moved": 14,
        "change": 0.0,
    }
    api.result = FAILED
    result = run("verify", "S", "R", "--json")
    assert (result.exit_code, json.loads(result.stdout)["passed"]) == (5, False)


@pytest.mark.parametrize("given", [("--steps", "0"), ("--seed", "-1")])
def test_numbers_out_of_range(api, given):
    result = run("verify", "S", "R", *given)
    assert (result.exit_code, api.calls) == (2, [])
    assert given[0] in result.stderr


def test_names_cannot_steer_the_terminal():
    report = Verified("S", "R", False, functions=(FunctionResult("a\x1b[31m", "ok", "ok", ("ok", "ok")),))
    assert "\x1b" not in "".join(line.plain for line in render_verified(report, width=80))


def test_files_that_are_missing(tmp_path):
    for arguments in (
        ("none", MODELS / "mlp"),
        (MODELS / "mlp", "none"),
        (MODELS / "mlp",) * 2 + ("--inputs", "none.npz"),
    ):
        assert run("verify", *map(str, arguments)).exit_code == 6


@pytest.mark.tf
@pytest.mark.slow
def test_a_spoiled_model_in_a_fresh_process(tmp_path):
    """All of it once: the caller starts no TensorFlow, the report names what is wrong."""
    from tests.helpers.mutation import mutants, write_mutant

    source = MODELS / "embedding"
    graphfreeze.rewrite(source, tmp_path / "out", freeze="emb/embeddings[:5]")
    spoiled = next(m for m in mutants(source, tmp_path / "out") if m.kind == "geometry")
    write_mutant(tmp_path / "out", tmp_path / "spoiled", spoiled)
    stages = []
    with pytest.raises(VerificationError) as error:
        graphfreeze.verify(source, tmp_path / "spoiled", steps=1, progress=stages.append)
    report = error.value.report
    assert str(error.value) == report.first_offender
    assert report.first_offender.startswith(f"'{tmp_path / 'spoiled'}' fails the check 'poison' of '__call__[0]': ")
    assert [f.poison for f in report.functions] == ["failed", "failed"]
    assert stages[0] == "messages"
    assert stages[-1] == "training"
