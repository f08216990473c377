"""How failures look: words, streams, exit codes."""

import subprocess
import sys

import pytest

from graphfreeze import errors
from tests.cli.standing_in import ROOT, WARNING, run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.GraphfreezeError, 1),
        (errors.UsageError, 2),
        (errors.NoMatchError, 3),
        (errors.UnsupportedModelError, 4),
        (errors.VerificationError, 5),
        (errors.InputOutputError, 6),
        (errors.NothingToTrainError, 7),
    ],
)
def test_exit_codes(api, error, code):
    api.error = error("No variable matches 'a\x1b[2J'. Did you mean 'b'?")
    result = run("plan", "M")
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr == "error: No variable matches 'a\\x1b[2J'. Did you mean 'b'?\n"


def test_selector_error_points_at_the_column(api):
    api.error = errors.SelectorSyntaxError("dense/kernel[:, :64", 19, "expected ',' or ']'")
    result = run("plan", "M")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: expected ',' or ']', at column 20\n"
        "  dense/kernel[:, :64\n"
        "                     ^\n"
    )  # fmt: skip


def test_operating_system_error_is_input_output(api):
    api.error = FileNotFoundError(2, "No such file or directory", "M/saved_model.pb")
    result = run("inspect", "M")
    assert result.exit_code == 6
    assert result.stderr == "error: No such file or directory: 'M/saved_model.pb'\n"


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (errors.InternalError("pass 'x' broke\nthe rule 'y'"), "pass 'x' broke the rule 'y'"),
        (ZeroDivisionError("division\nby zero"), "ZeroDivisionError: division by zero"),
    ],
)
def test_a_bug_is_one_line_without_traceback(api, error, what):
    api.error = error
    result = run("inspect", "M", columns="200")
    assert result.exit_code == 1
    assert result.stderr == (f"error: This is a bug of graphfreeze: {what}; run again with --debug for the traceback\n")


def test_debug_shows_the_traceback(api):
    api.error = ZeroDivisionError("x")
    result = run("inspect", "M", "--debug", columns="200")
    assert result.exit_code == 1
    assert result.stderr.startswith("Traceback (most recent call last):\n")
    assert result.stderr.endswith("ZeroDivisionError: x; run again with --debug for the traceback\n")
    api.error = errors.NoMatchError("nothing")
    result = run("inspect", "M", "--debug")
    assert result.exit_code == 3
    assert result.stderr.startswith("Traceback (most recent call last):\n")
    assert result.stderr.endswith("\nerror: nothing\n")


def test_interrupt(api):
    api.error = KeyboardInterrupt()
    result = run("inspect", "M")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "words", "command"),
    [
        (["frob"], "No such command 'frob'", ""),
        (["inspct", "M"], "No such command 'inspct'. Did you mean 'inspect'?", ""),
        (["--frob"], "No such option: --frob", ""),
        (["rewrite", "M"], "Missing argument 'OUT'", "rewrite "),
        (["plan", "M", "--freez", "x"], "No such option: --freez. Did you mean '--freeze'?", "plan "),
        (["plan", "M", "--freeze"], "Option '--freeze' requires an argument", ""),
        (
            ["plan", "M", "--strategy", "glue"],
            "Invalid value for '--strategy': 'glue' is not one of 'auto', 'stop', 'split', 'mask'",
            "plan ",
        ),
        (["plan", "M", "-q", "-v"], "Invalid value for --quiet: it excludes --verbose", "plan "),
        (["diff", "A"], "Missing argument 'B'", "diff "),
        (["checkpoint", "C", "--into", "R"], "Missing option '-o' / '--out'", "checkpoint "),
        (
            ["checkpoint", "C", "-o", "N"],
            "Invalid value for --into: give one of --into REWRITTEN and --from REWRITTEN",
            "checkpoint ",
        ),
        (["inspect", "M", "N"], "Got unexpected extra argument(s) (N)", "inspect "),
    ],
)
def test_usage_errors(api, arguments, words, command):
    result = run(*arguments, columns="200")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == f"error: {words}\nFor help: graphfreeze {command}--help\n"
    assert api.calls == []


STAND_IN = """
import sys, types
sys.path.insert(0, {root!r})
import graphfreeze
from tests.cli.standing_in import FakeApi
sys.modules["graphfreeze.api"] = graphfreeze.api = FakeApi()
from graphfreeze.cli import main
sys.argv = ["graphfreeze", *{arguments!r}]
main()
"""


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "M", "-v"], ["plan", "M", "--json"]])
def test_a_closed_pipe_is_quiet(arguments):
    code = STAND_IN.format(root=str(ROOT), arguments=arguments)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    with process.stderr:
        said = process.stderr.read()
    assert process.wait() == 0
    assert said in ("", f"warning: {WARNING}\n")


def test_python_dash_m():
    result = subprocess.run(
        [sys.executable, "-m", "graphfreeze", "rewrite"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stderr == "error: Missing argument 'MODEL'\nFor help: graphfreeze rewrite --help\n"


def test_a_killed_command_cleans_up():
    code = (
        "import os, signal, sys, types\n"
        "from graphfreeze import cli\n"
        "def inspect(*arguments, **options):\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    finally:\n"
        "        print('cleaned up')\n"
        "import graphfreeze\n"
        "graphfreeze.api = types.SimpleNamespace(inspect=inspect)\n"
        "sys.modules['graphfreeze.api'] = graphfreeze.api\n"
        "sys.argv = ['graphfreeze', 'inspect', 'M']\n"
        "cli.main()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (143, "cleaned up\n", "")
