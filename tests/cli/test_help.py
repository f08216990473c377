"""Help and version."""

import os
import re
import subprocess
import sys

import pytest

from tests.cli.standing_in import ROOT, run

COMMANDS = ["inspect", "plan", "rewrite", "train", "train-step", "verify", "phases", "finalize", "diff", "checkpoint"]


def test_first_line_of_help_says_which_freeze():
    result = run("--help")
    assert result.exit_code == 0
    first = result.stdout.splitlines()[0]
    assert first == "Freeze = hold variables at their values in training, NOT make them constants."
    assert "Usage: graphfreeze [OPTIONS] COMMAND [ARGS]..." in result.stdout
    assert re.findall(r"^  ([a-z][a-z-]*)  +[A-Z]", result.stdout, re.MULTILINE) == COMMANDS
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_help_in_60_columns_is_whole():
    command = [sys.executable, "-m", "graphfreeze", "--help"]
    environment = {**os.environ, "COLUMNS": "60"}
    shown = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert shown.startswith("Freeze = hold variables at their values in training, NOT\nmake them constants.\n")
    assert max(map(len, shown.splitlines())) <= 60
    assert "..." not in shown.split("Commands:")[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(command):
    result = run(command, "-h")
    assert result.exit_code == 0
    given = {
        "rewrite": "MODEL OUT",
        "train-step": "MODEL OUT",
        "finalize": "TRAINED OUT",
        "diff": "A B",
        "checkpoint": "PREFIX",
    }
    arguments = {**given, "train-step": "MODEL OUT", "verify": "SOURCE REWRITTEN"}.get(command, "MODEL")
    assert result.stdout.splitlines()[0] == f"Usage: graphfreeze {command} [OPTIONS] {arguments}"
    for option in ("--json", "--debug", "-q, --quiet", "-v, --verbose"):
        assert option in result.stdout


def test_no_command_shows_help_and_is_an_error():
    result = run()
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Freeze = ")


def test_version(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"1.2.3 of {name}")
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, "graphfreeze 1.2.3 of graphfreeze\n")


def test_help_starts_nothing_heavy():
    code = (
        "import sys\n"
        "sys.argv = ['graphfreeze', '--help']\n"
        "from graphfreeze.cli import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = ['numpy', 'tensorflow', 'keras', 'google.protobuf', 'ml_dtypes', 'rich', 'pydantic']\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("Freeze = ")
    assert result.stderr == "[]\n"
