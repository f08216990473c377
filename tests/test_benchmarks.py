"""The benchmarks run, at sizes that measure nothing."""

import json

import pytest

pytestmark = pytest.mark.tf


@pytest.mark.slow
def test_the_rewrite_benchmark_runs(tmp_path, capsys):
    from benchmarks import rewrite

    rewrite.main(["--quick", "--json", str(tmp_path / "rewrite.json")])

    data = json.loads((tmp_path / "rewrite.json").read_text())
    assert set(data["runs"]) >= {rewrite.LINK, rewrite.COPY, rewrite.LOAD, rewrite.CP}
    assert all(run["seconds"] > 0 and run["peak_mib"] > 1 for run in data["runs"].values())
    assert "faster than load + save" in capsys.readouterr().out


@pytest.mark.slow
def test_the_training_benchmark_runs(tmp_path, capsys):
    from benchmarks import train_step

    # "shares" is "fixtures" on other models.
    cases = [f"--case={name}" for name in train_step.CASES if name != "shares"]
    train_step.main(["--quick", *cases, "--json", str(tmp_path / "steps.json")])

    cases = json.loads((tmp_path / "steps.json").read_text())["cases"]
    variants = {name for case in cases for name in case["variants"]}
    assert variants >= {"unfrozen", "textbook", "split", "mask", "100%", "points 0.5 %", "scattered 50 %"}
    assert cases[0]["variants"]["split"]["slots"] == [[10, 4], [10, 4]]
    assert "slots of Adam" in capsys.readouterr().out


def test_a_ratio_is_taken_within_each_round():
    from benchmarks.common import interleave, ratio, spread

    clock = iter([1.0, 2.0, 40.0, 20.0, 3.0, 6.0])
    seconds = interleave({"peer": lambda: next(clock), "other": lambda: next(clock)}, rounds=3)

    # The second round starts with the other variant, and the whole machine is ten times slower there.
    assert seconds == {"peer": [1.0, 20.0, 3.0], "other": [2.0, 40.0, 6.0]}
    assert ratio(seconds, "other", "peer") == 2.0
    assert spread(seconds, "other", "peer") == (2.0, 2.0)
