"""The project's own rules: targets, gate, layers, banned imports."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


# What a make that runs these tests hands to a make that they run: it would announce the folder it works in.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}


def run(*command, cwd=ROOT, **options):
    return subprocess.run(
        command, **{"cwd": cwd, "env": ENVIRONMENT, "capture_output": True, "text": True, "check": False, **options}
    )


@needs_make
def test_make_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split()
    result = run("make")
    assert result.returncode == 0
    assert [line.split()[1] for line in result.stdout.splitlines()] == targets
    assert set(targets) >= {"help", "setup", "demo", "test", "test-all", "fast", "format", "bench"}


@needs_make
def test_make_runs_nothing_from_outside_its_environment():
    tools = ("ruff", "mypy", "lint-imports", "pytest", "pip")
    for target in ("demo", "test-all", "fast", "format", "bench"):
        for line in run("make", "-n", "-W", "pyproject.toml", target).stdout.splitlines():
            for tool in tools:
                assert not re.match(rf"\s*{tool}\b", line)


def ci(tmp_path, with_models):
    """A copy of the gate beside a ``make`` that only says what it was asked."""
    (tmp_path / "main" / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", tmp_path / "main" / ".ci" / "run")
    if with_models:
        (tmp_path / "shared" / "models").mkdir(parents=True)
        (tmp_path / "shared" / "models" / "CATALOG.md").touch()
    make = tmp_path / "bin" / "make"
    make.parent.mkdir()
    make.write_text(
        '#!/bin/sh\necho "make $1 CI=$CI"\necho "${CLOSING_LINE:-3 passed in 0.10s}"\nexit "${MAKE_EXIT:-0}"\n'
    )
    make.chmod(0o755)
    return {**os.environ, "PATH": f"{make.parent}:{os.environ['PATH']}"}


def test_ci_fails_where_the_real_models_are_missing(tmp_path):
    environment = ci(tmp_path, with_models=False)
    result = run("bash", ".ci/run", cwd=tmp_path / "main", env=environment)
    assert result.returncode == 1
    assert "../shared/models is missing" in result.stderr
    assert "make" not in result.stdout


def test_ci_runs_the_tests_and_closes_with_their_count(tmp_path):
    environment = ci(tmp_path, with_models=True)
    result = run("bash", ".ci/run", cwd=tmp_path / "main", env=environment)
    assert result.returncode == 0
    assert result.stdout.splitlines()[0] == "make test CI=1"
    assert result.stdout.splitlines()[-1] == "3 passed in 0.10s"


@pytest.mark.parametrize("more", [{"MAKE_EXIT": "2"}, {"CLOSING_LINE": "no tests ran in 0.01s"}])
def test_ci_fails_with_its_tests_and_where_there_are_none(tmp_path, more):
    environment = {**ci(tmp_path, with_models=True), **more}
    assert run("bash", ".ci/run", cwd=tmp_path / "main", env=environment).returncode != 0


def test_gate_can_be_executed():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_console_script_exists():
    module, _, function = PROJECT["project"]["scripts"]["graphfreeze"].partition(":")
    assert callable(getattr(import_module(module), function))


def test_package_is_typed_and_licensed():
    assert (ROOT / "graphfreeze" / "py.typed").exists()
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert PROJECT["project"]["license"] == "Apache-2.0"


def test_layers_are_those_of_the_design():
    (contract,) = PROJECT["tool"]["importlinter"]["contracts"]
    above = "cli > report > api > checkpoints | comparison > runtime | passes"
    layers = f"{above} > lowering > planning > selection > graph > savedmodel > errors"
    assert contract["layers"] == layers.split(" > ")
    assert contract["exhaustive"]


@pytest.mark.parametrize(
    ("path", "code", "rule"),
    [
        ("graphfreeze/api.py", "import tensorflow as tf\n\nTF = tf\n", "TID251"),
        ("graphfreeze/passes/split.py", "import keras\n\nK = keras\n", "TID251"),
        ("graphfreeze/api.py", "from .errors import UsageError\n\nE = UsageError\n", "TID252"),
        ("graphfreeze/runtime/loaded.py", "import tensorflow as tf\n\nTF = tf\n", None),
        ("tests/test_x.py", "import tensorflow as tf\n\nTF = tf\n", None),
        ("examples/x.py", "import tensorflow as tf\n\nTF = tf\n", None),
    ],
)
def test_banned_imports(path, code, rule):
    result = run(
        *(sys.executable, "-m", "ruff", "check", "--select", "TID", "--output-format", "concise", "--stdin-filename"),
        *(path, "-"),
        input=code,
    )
    assert "No module named ruff" not in result.stderr
    assert re.findall(r" (TID\d+) ", result.stdout) == ([rule] if rule else [])
