"""The fresh process, and what is said when it dies."""

import json
import sys

import pytest

from graphfreeze.errors import InternalError, UsageError, VerificationError
from graphfreeze.lowering.holding import Evidence
from graphfreeze.runtime.verifying import process
from graphfreeze.runtime.verifying.results import Finding, Rows, Verified
from graphfreeze.runtime.verifying.task import Task

TASK = Task("plain", "rewritten", Evidence(("serve",), (), (), (), True, (), (), False, (), ()))


def python(tmp_path, monkeypatch, body):
    """A program in the place of Python; ``$3`` and ``$4`` are the files of the task and of the result."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "echo forward; echo oh >&2; kill -ABRT $$",
            "The process that runs the models was killed by SIGABRT while it was at 'forward'. Its last words: oh",
        ),
        (
            "kill -KILL $$",
            (
                "The process that runs the models was killed by SIGKILL while it was at 'starting TensorFlow'; SIGKILL "
                "often means that memory ran out."
            ),
        ),
        ("exit 3", "The process that runs the models ended with code 3 while it was at 'starting TensorFlow'."),
    ],
)
def test_a_process_that_dies(tmp_path, monkeypatch, body, words):
    python(tmp_path, monkeypatch, body)
    with pytest.raises(VerificationError) as error:
        process.run_afresh(TASK)
    assert str(error.value) == words


def test_stages_are_told(tmp_path, monkeypatch):
    rows = {"functions": [], "variables": [], "training": [], "findings": []}
    python(tmp_path, monkeypatch, f"echo loading; echo forward; echo '{json.dumps(rows)}' > $4")
    stages = []
    assert process.run_afresh(TASK, stages.append) == Rows((), (), (), ())
    assert stages == ["loading", "forward"]


def test_errors_come_through(tmp_path, monkeypatch):
    error = {"error": {"kind": "UsageError", "message": "no such optimizer"}}
    python(tmp_path, monkeypatch, f"echo '{json.dumps(error)}' > $4")
    with pytest.raises(UsageError, match="no such optimizer"):
        process.run_afresh(TASK)
    error = {"error": {"kind": "", "message": "KeyError: 3", "traceback": "Traceback of the process"}}
    python(tmp_path, monkeypatch, f"echo '{json.dumps(error)}' > $4")
    with pytest.raises(InternalError) as raised:
        process.run_afresh(TASK)
    assert str(raised.value) == "KeyError: 3"
    assert raised.value.__notes__ == ["Traceback of the process"]


def test_the_first_offender():
    findings = (
        Finding("forward", "g", "not run", "why"),
        Finding("forward", "f", "failed", "off by one"),
        Finding("loading", "", "failed", "worse"),
    )
    report = Verified("a", "b", False).extended([Rows((), (), (), findings)])
    assert report.first_offender == "'b' fails the check 'forward' of 'f': off by one (1 more failed)"
    assert not report.to_dict()["passed"]
    assert Verified("a", "b", False).first_offender == ""
