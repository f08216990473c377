"""The command line against a stand-in for the api: exact words, streams and exit codes."""

import json
import os
import re
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

import graphfreeze
from graphfreeze import errors
from graphfreeze.checkpoints import Converted
from graphfreeze.cli import app
from graphfreeze.comparison import Change, Difference, FrozenElements, ValueChange
from graphfreeze.planning.plan import MetaGraphPlan, Plan, ReadRecord, Strategy, VariablePlan

ROOT = Path(__file__).parent.parent
WARNING = "'keras_metadata.pb' is left out: load_model would ignore the freeze"
KERNEL = VariablePlan(
    name="dense/kernel",
    path="layers/0/kernel",
    key="layers/0/kernel/.ATTRIBUTES/VARIABLE_VALUE",
    dtype="float32",
    shape=(4, 8),
    kind="weight",
    trainable=True,
    elements=32,
    bytes=128,
    frozen=32,
    strategy=Strategy.STOP,
    reason="the whole variable is frozen",
    reads=(ReadRecord("__inference_f_1", "MatMul/ReadVariableOp", "ReadVariableOp", "full"),),
    optimizer_bytes=(256, 0),
)


def plan_value(command):
    meta = MetaGraphPlan(("serve",), ("serving_default",), (KERNEL,))
    warnings = () if command == "inspect" else (WARNING,)
    return Plan(command, "M", "0" * 64, (meta,), {"rules": []}, warnings)


EQUAL = Difference("A", "A", (), (), FrozenElements(32, 0))
DIFFERENT = Difference(
    "A",
    "B",
    (
        Change("node", "added", "__inference_f_1/dense/MatMul", "MatMul"),
        Change("flag", "changed", "dense/bias", "x -> y"),
    ),
    (ValueChange("dense/kernel", "k", 32, 8, 0.0125),),
    FrozenElements(24, 1, (ValueChange("dense/bias", "", 8, 1, 0.5),)),
    (WARNING,),
)
CONVERTED = Converted(
    checkpoint="C",
    out="N",
    direction="into",
    model="R",
    variables=("dense/kernel", "dense/bias"),
    slots=2,
    dropped=("dense/bias",),
    added=(),
    unchanged=9,
    differing=(("dense/kernel", 4),),
    warnings=(WARNING,),
)


@dataclass(frozen=True)
class Finalized:
    warnings: tuple
    variables: tuple
    out: object


class FakeApi(types.ModuleType):
    """Records the calls; raises ``error`` where it is set."""

    def __init__(self):
        super().__init__("graphfreeze.api")
        self.calls = []
        self.error = None

    def _called(self, name, arguments, options):
        self.calls.append((name, arguments, options))
        if self.error is not None:
            raise self.error

    def inspect(self, *arguments, **options):
        self._called("inspect", arguments, options)
        return plan_value("inspect")

    def plan(self, *arguments, **options):
        self._called("plan", arguments, options)
        return plan_value("plan")

    def rewrite(self, *arguments, **options):
        self._called("rewrite", arguments, options)
        return plan_value("rewrite")

    def finalize(self, model, out, **options):
        self._called("finalize", (model, out), options)
        return Finalized((WARNING,), ("dense/kernel", "dense/bias"), out)

    def diff(self, *arguments, **options):
        self._called("diff", arguments, options)
        return EQUAL if arguments[0] == arguments[1] else DIFFERENT

    def checkpoint(self, *arguments, **options):
        self._called("checkpoint", arguments, options)
        return CONVERTED


@pytest.fixture
def api(monkeypatch):
    fake = FakeApi()
    monkeypatch.setitem(sys.modules, "graphfreeze.api", fake)
    monkeypatch.setattr(graphfreeze, "api", fake, raising=False)
    return fake


def run(*arguments, columns="80"):
    return CliRunner().invoke(app, arguments, prog_name="graphfreeze", env={"COLUMNS": columns, "NO_COLOR": "1"})


TABLE = """\
variable
  shape   dtype    kind    frozen / total  strategy  reads  writes    Adam bytes
  ------  -------  ------  --------------  --------  -----  ------  ------------
dense/kernel
  (4, 8)  float32  weight         32 / 32  stop          1       0  256 B -> 0 B
  the whole variable is frozen

trainable params: 0 || all params: 32 || trainable%: 0.0000
optimizer bytes with Adam: 256 B -> 0 B (0.0 %)
"""
TOTALS = """\
trainable params: 0 || all params: 32 || trainable%: 0.0000
optimizer bytes with Adam: 256 B -> 0 B (0.0 %)
"""
NO_SELECTION = {
    "freeze": (),
    "train": (),
    "spec": None,
    "strategy": None,
    "copy": None,
    "strict": False,
    "enable": False,
    "state": False,
    "add": False,
    "allow_empty": False,
    "tags": None,
}


# What is handed to the api.


def test_inspect_call(api):
    assert run("inspect", "M").exit_code == 0
    assert run("inspect", "M", "--tags", "serve, gpu").exit_code == 0
    assert run("inspect", "M", "--tags", "").exit_code == 0
    assert api.calls == [
        ("inspect", (Path("M"),), {"tags": None, "deep": False}),
        ("inspect", (Path("M"),), {"tags": ("serve", "gpu"), "deep": False}),
        ("inspect", (Path("M"),), {"tags": (), "deep": False}),
    ]


SELECTION = (
    *("--freeze", "a/**", "--train", "a/b", "--freeze", "emb[:50, [1, 2]]", "--spec", "f.toml", "--strategy", "mask"),
    *("--copy", "live", "--strict", "--enable", "--state", "--add", "--allow-empty", "--tags", "serve"),
)
SELECTED = {
    "freeze": ("a/**", "emb[:50, [1, 2]]"),
    "train": ("a/b",),
    "spec": Path("f.toml"),
    "strategy": "mask",
    "copy": "live",
    "strict": True,
    "enable": True,
    "state": True,
    "add": True,
    "allow_empty": True,
    "tags": ("serve",),
}


def test_plan_call(api):
    assert run("plan", "M").exit_code == 0
    assert run("plan", "M", *SELECTION).exit_code == 0
    assert api.calls == [("plan", (Path("M"),), NO_SELECTION), ("plan", (Path("M"),), SELECTED)]


def test_rewrite_call(api):
    assert run("rewrite", "M", "O").exit_code == 0
    more = ("--plan", "p.json", "--weights", "link", "--overwrite")
    assert run("rewrite", "M", "O", *SELECTION, *more).exit_code == 0
    rest = {"plan": None, "weights": "copy", "overwrite": False, "progress": None}
    assert api.calls[0] == ("rewrite", (Path("M"), Path("O")), {**NO_SELECTION, **rest})
    rest = {"plan": Path("p.json"), "weights": "link", "overwrite": True, "progress": None}
    assert api.calls[1] == ("rewrite", (Path("M"), Path("O")), {**SELECTED, **rest})


def test_finalize_call(api):
    assert run("finalize", "T", "O").exit_code == 0
    assert (
        run("finalize", "T", "O", "--unfreeze", "a/*", "--unfreeze", "b", "--weights", "link", "--overwrite").exit_code
        == 0
    )
    assert api.calls == [
        ("finalize", (Path("T"), Path("O")), {"unfreeze": (), "overwrite": False, "weights": "copy", "progress": None}),
        (
            "finalize",
            (Path("T"), Path("O")),
            {"unfreeze": ("a/*", "b"), "overwrite": True, "weights": "link", "progress": None},
        ),
    ]


def test_diff_and_checkpoint_call(api):
    assert run("diff", "A", "A").exit_code == 0
    assert run("checkpoint", "C", "--into", "R", "-o", "N").exit_code == 0
    options = ("--frozen", "model", "--at", "net", "--overwrite")
    assert run("checkpoint", "C", "--from", "R", "--out", "N", *options).exit_code == 0
    assert api.calls == [
        ("diff", (Path("A"), Path("A")), {}),
        (
            "checkpoint",
            (Path("C"), Path("N")),
            {
                "into": Path("R"),
                "from_": None,
                "frozen": "checkpoint",
                "at": None,
                "overwrite": False,
                "progress": None,
            },
        ),
        (
            "checkpoint",
            (Path("C"), Path("N")),
            {"into": None, "from_": Path("R"), "frozen": "model", "at": "net", "overwrite": True, "progress": None},
        ),
    ]


# What a user sees.


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
    monkeypatch.setattr(sys.modules[__name__], "DIFFERENT", Difference("A", "B", many, (), None))
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


# Help and version.


COMMANDS = ["inspect", "plan", "rewrite", "verify", "finalize", "diff", "checkpoint"]


def test_first_line_of_help_says_which_freeze():
    result = run("--help")
    assert result.exit_code == 0
    first = result.stdout.splitlines()[0]
    assert first == "Freeze = hold variables at their values in training, NOT make them constants."
    assert "Usage: graphfreeze [OPTIONS] COMMAND [ARGS]..." in result.stdout
    assert re.findall(r"^  ([a-z]+)  +[A-Z]", result.stdout, re.MULTILINE) == COMMANDS
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
    given = {"rewrite": "MODEL OUT", "finalize": "TRAINED OUT", "diff": "A B", "checkpoint": "PREFIX"}
    arguments = {**given, "verify": "SOURCE REWRITTEN"}.get(command, "MODEL")
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


# Failures.


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
from tests.test_cli import FakeApi
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
