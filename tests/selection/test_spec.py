"""Spec files, how they combine with a call's own selectors, and every message about them."""

import json
from pathlib import Path

import pytest

from graphfreeze.errors import InputOutputError, SelectorSyntaxError, UsageError
from graphfreeze.selection.parser import parse_selector
from graphfreeze.selection.spec import Copy, Rule, Spec, Strategy, Verb, make_rule, make_spec, read_spec


@pytest.fixture
def spec_file(tmp_path):
    def write(text):
        path = tmp_path / "mlp.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def said(spec):
    return [str(rule) for rule in spec.rules]


def test_lists(spec_file):
    spec = read_spec(spec_file('train = "b/*"\nfreeze = ["**", "a[:4]"]\nstrategy = "mask"\ncopy = "live"'))
    assert said(spec) == ["freeze **", "freeze a[:4]", "train b/*"]
    assert (spec.strategy, spec.copy) == (Strategy.MASK, Copy.LIVE)


def test_ordered_rules(spec_file):
    spec = read_spec(spec_file('strategy = "stop"\n[[rule]]\ntrain = "a"\n[[rule]]\nfreeze = ["b", "c"]'))
    assert said(spec) == ["train a", "freeze b", "freeze c"]
    assert (spec.strategy, spec.copy) == (Strategy.STOP, Copy.SNAPSHOT)


def test_empty_file_has_no_rules(spec_file):
    assert read_spec(spec_file("")) == Spec((), Strategy.AUTO, Copy.SNAPSHOT)


def test_rules_know_where_they_stand(spec_file):
    path = spec_file('freeze = ["a", "b"]\ntrain = "c"')
    assert [rule.origin for rule in read_spec(path).rules] == [
        f"{path}: freeze, entry 1",
        f"{path}: freeze, entry 2",
        f"{path}: train",
    ]
    path = spec_file('[[rule]]\nfreeze = ["a"]')
    assert [rule.origin for rule in read_spec(path).rules] == [f"{path}: rule 1, freeze, entry 1"]


def test_call_comes_after_the_file(spec_file):
    file = read_spec(spec_file('train = "a"\nstrategy = "mask"'))
    spec = make_spec(["b", "c"], ["d"], file=file)
    assert said(spec) == ["train a", "freeze b", "freeze c", "train d"]
    assert spec.strategy is Strategy.MASK
    assert make_spec(file=file, strategy=Strategy.AUTO, copy=Copy.LIVE) == Spec(file.rules, Strategy.AUTO, Copy.LIVE)


def test_mask_files_stand_beside_the_spec_or_in_the_working_directory(spec_file, tmp_path):
    file = read_spec(spec_file('freeze = ["a[@m.npy]", "b"]'))
    assert [rule.base_dir for rule in make_spec(["c[@m.npy]"], file=file).rules] == [tmp_path, Path(), Path()]
    assert make_spec(["c[@m.npy]"], base_dir=tmp_path).rules[0].base_dir == tmp_path


def test_stored_form_round_trips_and_tells_no_folder_needlessly(spec_file, tmp_path):
    spec = make_spec(["a[ :4 ]", "b[@m.npy]"], ["c"], base_dir=tmp_path, file=read_spec(spec_file('freeze = "x"')))
    data = json.loads(json.dumps(spec.to_dict()))
    assert Spec.from_dict(data) == spec
    assert data["rules"] == [
        {"verb": "freeze", "selector": "x"},
        {"verb": "freeze", "selector": "a[ :4 ]"},
        {"verb": "freeze", "selector": "b[@m.npy]", "base_dir": tmp_path.as_posix()},
        {"verb": "train", "selector": "c"},
    ]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (None, "expected 'rules', 'strategy' and 'copy'."),
        ({"rules": [3], "strategy": "auto", "copy": "live"}, "expected rules with 'verb' and 'selector'"),
        ({"rules": [], "strategy": "best", "copy": "live"}, "'best' is not a valid Strategy"),
        (
            {"rules": [{"verb": "keep", "selector": "a"}], "strategy": "auto", "copy": "live"},
            "'keep' is not a valid Verb",
        ),
    ],
)
def test_damaged_stored_form(data, problem):
    with pytest.raises(InputOutputError) as caught:
        Spec.from_dict(data)
    assert str(caught.value) == f"A stored spec is damaged: {problem}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("freeze = a", ": not valid TOML: Invalid value (at line 1, column 10)"),
        ("freeze = [", ": not valid TOML: Invalid value (at line 1, the end of the file)"),
        ('freeze = "a"\nfreeze = "b"', ": not valid TOML: Cannot overwrite a value (at line 2, the end of the file)"),
        (
            'frezze = ["a"]',
            (
                ": unknown key 'frezze'. Did you mean 'freeze'? Known keys: freeze, train, rule, strategy, copy, "
                "batch_norm, phase."
            ),
        ),
        ("x = 1", ": unknown key 'x'. Known keys: freeze, train, rule, strategy, copy, batch_norm, phase."),
        ("freeze = 3", ": freeze: expected a selector or a list of selectors, found an integer."),
        ("train = {a = 1}", ": train: expected a selector or a list of selectors, found a table."),
        ('freeze = ["a", true]', ": freeze, entry 2: expected a selector, found a boolean."),
        ("freeze = [1979-05-27]", ": freeze, entry 1: expected a selector, found a date or time."),
        ('strategy = "spilt"', ": 'strategy' must be one of auto, stop, split, mask, found 'spilt'."),
        ("strategy = 1.5", ": 'strategy' must be one of auto, stop, split, mask, found a float."),
        ('copy = ["live"]', ": 'copy' must be one of snapshot, live, found a list."),
        (
            'freeze = "a"\n[[rule]]\nfreeze = "a"',
            ": 'freeze' and [[rule]] in one file leave the order open. Write 'freeze' as a [[rule]] of its own.",
        ),
        ("rule = 3", ": 'rule' must be tables: write [[rule]], with 'freeze' or 'train' below it."),
        ('[rule]\nfreeze = "a"', ": 'rule' must be tables: write [[rule]], with 'freeze' or 'train' below it."),
        ('[[rule]]\nfreeze = "a"\ntrain = "b"', ": rule 1: expected one of 'freeze' and 'train', found both."),
        ('[[rule]]\nfreeze = "a"\n[[rule]]', ": rule 2: expected one of 'freeze' and 'train', found neither."),
        (
            '[[rule]]\nfreeze = "a"\nstrategy = "mask"',
            ": rule 1: 'strategy' holds for the whole file: write it above the first [[rule]].",
        ),
        ('[[rule]]\ntrian = "a"', ": rule 1: unknown key 'trian'. Did you mean 'train'? Known keys: freeze, train."),
        ("[[rule]]\nfreeze = 3", ": rule 1, freeze: expected a selector or a list of selectors, found an integer."),
    ],
)
def test_refusals(spec_file, text, message):
    path = spec_file(text)
    with pytest.raises(UsageError) as caught:
        read_spec(path)
    assert str(caught.value) == f"{path}{message}"


def test_selector_error_shows_file_and_column(spec_file):
    path = spec_file('freeze = ["a", "b[1"]')
    with pytest.raises(SelectorSyntaxError) as caught:
        read_spec(path)
    assert str(caught.value) == (
        f"{path}: freeze, entry 2: expected ']': the bracket opened at column 2 is not closed, at column 4\n"
        "  b[1\n"
        "     ^"
    )


def test_missing_file(tmp_path):
    with pytest.raises(InputOutputError) as caught:
        read_spec(tmp_path / "no.toml")
    assert str(caught.value) == f"Cannot read spec file '{tmp_path / 'no.toml'}': No such file or directory."


def test_file_that_is_no_text(tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError) as caught:
        read_spec(path)
    assert str(caught.value) == f"{path}: the file is not UTF-8 text."


def test_rule_made_without_text_spells_its_selector():
    assert Rule(Verb.FREEZE, parse_selector("a[ 1 ]")).text == "a[1]"
    assert make_rule(Verb.TRAIN, "a[ 1 ]", Path()).text == "a[ 1 ]"
