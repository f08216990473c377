"""The report at several widths, as a person sees it."""

import io
import sys

import pytest
from rich.cells import cell_len

from graphfreeze import report
from graphfreeze.checkpoints import Converted
from graphfreeze.comparison import Change, Difference, FrozenElements, ValueChange
from graphfreeze.planning.plan import (
    Atom,
    Copy,
    MetaGraphPlan,
    Plan,
    ReadRecord,
    Storage,
    Strategy,
    VariablePlan,
    WriteRecord,
)
from graphfreeze.report.layout import printable, wrapped
from graphfreeze.report.lifecycle import render_converted, render_difference
from graphfreeze.report.plans import human_bytes, render_plan
from graphfreeze.selection import whole_region


def variable(name, shape, *, dtype="float32", kind="weight", trainable=True, frozen=0, reads=1, **more):
    elements = 1
    for size in shape or ():
        elements *= size
    before = 8 * elements if trainable else 0
    after = 8 * (elements - frozen) if trainable else 0
    fields = {
        "path": name,
        "key": f"{name}/.ATTRIBUTES/VARIABLE_VALUE",
        "bytes": 4 * elements,
        "optimizer_bytes": (before, after),
        "reads": (ReadRecord("__inference_call_7", "dense/MatMul/ReadVariableOp", "ReadVariableOp", "full"),) * reads,
    }
    return VariablePlan(
        name=name,
        dtype=dtype,
        shape=shape,
        kind=kind,
        trainable=trainable,
        elements=elements,
        frozen=frozen,
        **{**fields, **more},
    )


WHOLE = {"strategy": Strategy.STOP, "reason": "the whole variable is frozen"}
VARIABLES = (
    variable("conv/kernel", (3, 3, 1, 16), frozen=144, reads=2, **WHOLE),
    variable("embeddings", (50100, 256), frozen=12800000, strategy=Strategy.SPLIT, reason="the trainable part is rows"),
    variable("dense/bias", (10,), frozen=7, strategy=Strategy.MASK, copy=Copy.LIVE, reason="asked for"),
    variable(
        "norm/moving_mean",
        (16,),
        kind="statistic",
        trainable=False,
        writes=(
            WriteRecord("__inference_train_9", "AssignMovingAvg", "AssignSubVariableOp", "restore", "masked at 'g'"),
        ),
    ),
    variable("seed", (2,), dtype="int64", kind="state", trainable=False),
)
META = MetaGraphPlan(("serve",), ("serving_default", "train"), VARIABLES)


def plan(command="plan", metas=(META,), warnings=()):
    return Plan(command, "models/digits", "0" * 64, tuple(metas), {}, tuple(warnings))


def text(*args, **options):
    return "\n".join(line.plain for line in render_plan(*args, **options)) + "\n"


PLAN_60 = """\
variable
           frozen / total  strategy              Adam bytes
  -----------------------  ---------  ---------------------
conv/kernel
                144 / 144  stop              1.1 KiB -> 0 B
  (3, 3, 1, 16), float32, weight, reads: 2, writes: 0
  the whole variable is frozen
embeddings
  12,800,000 / 12,825,600  split      97.9 MiB -> 200.0 KiB
  (50100, 256), float32, weight, reads: 1, writes: 0
  the trainable part is rows
dense/bias
                   7 / 10  mask live           80 B -> 24 B
  (10,), float32, weight, reads: 1, writes: 0
  asked for

2 variables stay as they are (1 statistic, 1 state); -v
shows more.
trainable params: 25,603 || all params: 12,825,770 ||
trainable%: 0.1996
optimizer bytes with Adam: 97.9 MiB -> 200.0 KiB (0.2 %)
"""
PLAN_80 = """\
variable              frozen / total  strategy              Adam bytes
-----------  -----------------------  ---------  ---------------------
conv/kernel                144 / 144  stop              1.1 KiB -> 0 B
  (3, 3, 1, 16), float32, weight, reads: 2, writes: 0
  the whole variable is frozen
embeddings   12,800,000 / 12,825,600  split      97.9 MiB -> 200.0 KiB
  (50100, 256), float32, weight, reads: 1, writes: 0
  the trainable part is rows
dense/bias                    7 / 10  mask live           80 B -> 24 B
  (10,), float32, weight, reads: 1, writes: 0
  asked for

2 variables stay as they are (1 statistic, 1 state); -v shows more.
trainable params: 25,603 || all params: 12,825,770 || trainable%: 0.1996
optimizer bytes with Adam: 97.9 MiB -> 200.0 KiB (0.2 %)
"""
PLAN_120 = """\
variable     shape          dtype    kind             frozen / total  strategy   reads  writes             Adam bytes
-----------  -------------  -------  ------  -----------------------  ---------  -----  ------  ---------------------
conv/kernel  (3, 3, 1, 16)  float32  weight                144 / 144  stop           2       0         1.1 KiB -> 0 B
  the whole variable is frozen
embeddings   (50100, 256)   float32  weight  12,800,000 / 12,825,600  split          1       0  97.9 MiB -> 200.0 KiB
  the trainable part is rows
dense/bias   (10,)          float32  weight                   7 / 10  mask live      1       0           80 B -> 24 B
  asked for

2 variables stay as they are (1 statistic, 1 state); -v shows more.
trainable params: 25,603 || all params: 12,825,770 || trainable%: 0.1996
optimizer bytes with Adam: 97.9 MiB -> 200.0 KiB (0.2 %)
"""
PLAN_PIPE = """\
variable     shape          dtype    kind             frozen / total  strategy   reads  writes             Adam bytes  reason
-----------  -------------  -------  ------  -----------------------  ---------  -----  ------  ---------------------  ----------------------------
conv/kernel  (3, 3, 1, 16)  float32  weight                144 / 144  stop           2       0         1.1 KiB -> 0 B  the whole variable is frozen
embeddings   (50100, 256)   float32  weight  12,800,000 / 12,825,600  split          1       0  97.9 MiB -> 200.0 KiB  the trainable part is rows
dense/bias   (10,)          float32  weight                   7 / 10  mask live      1       0           80 B -> 24 B  asked for

2 variables stay as they are (1 statistic, 1 state); -v shows more.
trainable params: 25,603 || all params: 12,825,770 || trainable%: 0.1996
optimizer bytes with Adam: 97.9 MiB -> 200.0 KiB (0.2 %)
"""  # noqa: E501
INSPECT_60 = """\
meta graph: serve (TF2)
signatures: serving_default, train

variable
  trainable           frozen / total  strategy
  ---------  -----------------------  ---------
conv/kernel
  yes                      144 / 144  stop
  (3, 3, 1, 16), float32, weight, reads: 2, writes: 0
embeddings
  yes        12,800,000 / 12,825,600  split
  (50100, 256), float32, weight, reads: 1, writes: 0
dense/bias
  yes                         7 / 10  mask live
  (10,), float32, weight, reads: 1, writes: 0
norm/moving_mean
  no                          0 / 16  -
  (16,), float32, statistic, reads: 1, writes: 1
seed
  no                           0 / 2  -
  (2,), int64, state, reads: 1, writes: 0

trainable params: 25,603 || all params: 12,825,770 ||
trainable%: 0.1996
optimizer bytes with Adam: 97.9 MiB -> 200.0 KiB (0.2 %)
"""
INSPECT_80 = """\
meta graph: serve (TF2)
signatures: serving_default, train

variable
  shape          dtype    trainable           frozen / total  strategy
  -------------  -------  ---------  -----------------------  ---------
conv/kernel
  (3, 3, 1, 16)  float32  yes                      144 / 144  stop
  weight, reads: 2, writes: 0
embeddings
  (50100, 256)   float32  yes        12,800,000 / 12,825,600  split
  weight, reads: 1, writes: 0
dense/bias
  (10,)          float32  yes                         7 / 10  mask live
  weight, reads: 1, writes: 0
norm/moving_mean
  (16,)          float32  no                          0 / 16  -
  statistic, reads: 1, writes: 1
seed
  (2,)           int64    no                           0 / 2  -
  state, reads: 1, writes: 0

trainable params: 25,603 || all params: 12,825,770 || trainable%: 0.1996
optimizer bytes with Adam: 97.9 MiB -> 200.0 KiB (0.2 %)
"""


@pytest.mark.parametrize(
    ("command", "width", "expected"),
    [
        ("plan", 60, PLAN_60),
        ("plan", 80, PLAN_80),
        ("rewrite", 80, PLAN_80),
        ("plan", 120, PLAN_120),
        ("plan", None, PLAN_PIPE),
        ("inspect", 60, INSPECT_60),
        ("inspect", 80, INSPECT_80),
    ],
)
def test_report_as_seen(command, width, expected):
    assert text(plan(command), width=width) == expected


def long_names():
    names = [
        "transformer/encoder/layer_0/attention/self/query/kernel",
        "one_name_without_any_slash_that_goes_on_and_on_for_more_than_eighty_columns_of_a_screen_kernel",
        "名前" * 30,
    ]
    return [variable(name, (768, 768), frozen=589824, **WHOLE) for name in names]


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120, 200])
def test_no_line_is_too_wide_and_no_name_is_cut(width, verbose):
    meta = MetaGraphPlan(("serve",), ("a_signature_with_a_long_name",) * 9, (*VARIABLES, *long_names()))
    for command in ("inspect", "plan"):
        shown = text(plan(command, [meta, META]), width=width, verbose=verbose)
        assert max(cell_len(line) for line in shown.splitlines()) <= width
        assert not any(line != line.rstrip() for line in shown.splitlines())
        joined = "".join(shown.split())
        assert all(v.name in joined for v in long_names())


def test_verbose_lists_untouched_variables_keys_reads_writes_and_new_variables():
    atoms = (
        Atom(whole_region((10,)), Storage.BASE, trainable=False),
        Atom(whole_region((10,)), Storage.PART, trainable=True, name="w/graphfreeze/trainable"),
    )
    split = variable("w", (10,), path="layers/0/w", frozen=5, strategy=Strategy.SPLIT, reason="rows", atoms=atoms)
    shown = text(plan(metas=[MetaGraphPlan(("serve",), (), (split, VARIABLES[3]))]), width=100, verbose=True)
    assert "    path: layers/0/w\n" in shown
    assert "    key: w/.ATTRIBUTES/VARIABLE_VALUE\n" in shown
    assert "    new variable: w/graphfreeze/trainable (trainable)\n" in shown
    assert "    read full: ReadVariableOp 'dense/MatMul/ReadVariableOp' in '__inference_call_7'\n" in shown
    write = "    write: AssignSubVariableOp 'AssignMovingAvg' in '__inference_train_9'"
    assert f"{write}, guard: restore, gradient:\n      masked at 'g'\n" in shown
    row = next(line for line in shown.splitlines() if line.startswith("norm/moving_mean"))
    assert row.split() == ["norm/moving_mean", "(16,)", "float32", "statistic", "0", "/", "16", "-", "1", "1", "0", "B"]
    assert "stay" not in shown


def test_quiet_leaves_the_totals():
    assert text(plan(), width=80, quiet=True).splitlines() == PLAN_80.splitlines()[-2:]


def test_model_without_variables():
    empty = MetaGraphPlan(("serve",), (), ())
    assert text(plan("inspect", [empty]), width=80) == (
        "meta graph: serve (TF2)\nsignatures: (none)\n\nThe model has no variables: there is nothing to freeze.\n"
    )
    assert text(plan("inspect", []), width=80) == "The model has no meta graphs: there is nothing to freeze.\n"


def test_plan_that_freezes_nothing():
    shown = text(plan(metas=[MetaGraphPlan(("serve",), (), VARIABLES[3:])]), width=80)
    assert shown == (
        "Nothing is frozen: 2 variables stay as they are (1 statistic, 1 state); -v shows\n"
        "more.\n"
        "trainable params: 0 || all params: 16 || trainable%: 0.0000\n"
        "optimizer bytes with Adam: 0 B\n"
    )


def test_the_line_of_the_issue():
    weights = (
        variable("a", (4212736,)),
        variable("b", (4194304,), frozen=4194304, **WHOLE),
    )
    line = text(plan(metas=[MetaGraphPlan((), (), weights)]), width=120, quiet=True).splitlines()[0]
    assert line == "trainable params: 4,212,736 || all params: 8,407,040 || trainable%: 50.1096"


def test_enabled_and_strict_and_unknown_shapes():
    shown = text(
        plan(
            metas=[
                MetaGraphPlan(
                    ("serve",),
                    (),
                    (
                        variable("a", None, frozen=1, strict=True, **WHOLE),
                        variable("b", (-1, 3), kind="state", trainable=False, enabled=True, reason="--enable"),
                        variable("", (), frozen=1, **{**WHOLE, "path": "layers/1/w"}),
                    ),
                )
            ]
        ),
        width=None,
    )
    rows = [line.split("  ") for line in shown.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells[2][:2] == ["a", "unknown"]
    assert "stop strict" in cells[2]
    assert cells[3][:2] == ["b", "(?, 3)"]
    assert "enabled" in cells[3]
    assert cells[4][:2] == ["layers/1/w", "()"]


def test_names_cannot_steer_the_terminal():
    hostile = variable("a\x1b[2Jb\nc", (2,), frozen=2, **WHOLE)
    shown = text(plan(metas=[MetaGraphPlan(("t\x1b",), ("s\x07",), (hostile,))] * 2), width=80, verbose=True)
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert r"a\x1b[2Jb\nc" in shown
    message = report.render_message("error", "No variable 'a\x1b[2J'", width=80)
    assert message[0].plain == r"error: No variable 'a\x1b[2J'"


def test_printable_keeps_what_can_be_printed():
    assert printable("größe/[bold]") == "größe/[bold]"
    assert printable("\udc80") == r"\udc80"


def test_message_wraps_words_but_keeps_a_caret_in_its_place():
    lines = report.render_message("error", "something is wrong here\n  dense/kernel[:, :64\n         ^", width=16)
    assert [line.plain for line in lines] == [
        "error: something",
        "is wrong here",
        "  dense/kernel[:, :64",
        "         ^",
    ]


def test_wrapped_breaks_after_a_slash_before_it_breaks_a_word():
    assert [line.plain for line in wrapped("encoder/layer/kernel", 15, hanging=2)] == ["encoder/layer/", "  kernel"]
    assert [line.plain for line in wrapped("abcdefghijkl", 10, hanging=2)] == ["abcdefgh", "  ijkl"]


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 30, "3.0 GiB"),
        (1 << 50, "1,024.0 TiB"),
    ],
)
def test_human_bytes(count, shown):
    assert human_bytes(count) == shown


class Terminal(io.StringIO):
    def isatty(self):
        return True


def use_terminal(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", Terminal())


def test_colours_on_a_terminal(monkeypatch):
    use_terminal(monkeypatch)
    report.write_plan(plan())
    assert "\x1b[" in sys.stdout.getvalue()


def test_no_escape_codes_with_no_color(monkeypatch):
    use_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    report.write_plan(plan())
    assert "\x1b" not in sys.stdout.getvalue()


def test_a_pipe_gets_plain_wide_lines(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    report.write_plan(plan())
    assert sys.stdout.getvalue() == PLAN_PIPE


def test_columns_of_the_environment_win(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    report.write_plan(plan())
    assert sys.stdout.getvalue() == PLAN_60


def test_progress_only_where_somebody_looks(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with report.copy_progress() as advance:
        assert advance is None
    monkeypatch.setattr(sys, "stderr", Terminal())
    with report.copy_progress(quiet=True) as advance:
        assert advance is None
    with report.copy_progress():
        pass
    assert sys.stderr.getvalue() == ""


def test_progress_draws_a_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with report.copy_progress() as advance:
        advance(1 << 20, 4 << 20)
        advance(4 << 20, 4 << 20)
    assert "copying weights" in sys.stderr.getvalue()


def test_restored_variables(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    report.write_restored(("a", "b/c"))
    report.write_restored(("a",), verbose=True)
    assert sys.stdout.getvalue() == "restored 2 variables\nrestored 1 variable:\n  a\n"


@pytest.mark.parametrize("command", ["inspect", "plan"])
def test_variables_of_one_name_are_told_apart_by_path(command):
    named = tuple(variable("Variable", (4, 4), path=path, **WHOLE) for path in ("first", "pair/0"))
    shown = text(plan(command, (MetaGraphPlan(("serve",), (), named),)), width=200)
    assert "\nfirst " in shown
    assert "\npair/0 " in shown
    assert "Variable" not in shown


# Differences and converted checkpoints.


def difference():
    changes = (
        Change("function", "changed", "__inference_call_7 -> __inference_call_21", "3 nodes"),
        Change("node", "removed", "__inference_call_7/encoder/layer_0/attention/query/MatMul", "MatMul"),
        Change("variable", "added", "a\x1b[31mname"),
    )
    values = (ValueChange("encoder/layer_0/attention/query/kernel", "k", 589824, 1200, 0.001234),)
    return Difference("A", "B", changes, values, FrozenElements(1703, 0))


@pytest.mark.parametrize("width", [24, 40, 60, 100])
def test_a_difference_fits_and_is_whole(width):
    lines = [line.plain for line in render_difference(difference(), width=width)]
    assert max(map(cell_len, lines)) <= width
    shown = "".join("".join(lines).split())
    for words in ("encoder/layer_0/attention/query/MatMul", "1,200of589,824elements,byupto0.00123", "0of1,703"):
        assert words in shown
    assert "\x1b" not in shown


def test_changes_stand_by_subject():
    changes = [Change("node", "added", "x"), Change("flag", "changed", "y"), Change("node", "added", "z")]
    lines = render_difference(Difference("A", "B", tuple(changes), (), None), width=None)
    assert [line.plain for line in lines] == [
        "+ node x",
        "+ node z",
        "~ flag y",
        "",
        "differences: 2 nodes, 1 flag",
    ]


def test_a_conversion_back():
    done = Converted("C", "N", "from", "R", ("w",), 1, (), tuple(f"v{i}" for i in range(10)), 3, ())
    assert [line.plain for line in render_converted(done, width=None)] == [
        "converted for the original: 1 frozen variable, 1 optimizer slot",
        "unchanged: 3 tensors",
        "new slots, because it did not train before: 'v0', 'v1', 'v2', 'v3', 'v4', 'v5', 'v6', 'v7' and 2 more",
    ]
