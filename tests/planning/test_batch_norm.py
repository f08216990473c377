"""What a plan chooses for each batch norm, the words of it, and the ways to ask for it."""

import json

import pytest
from typer.testing import CliRunner

import graphfreeze
from graphfreeze.errors import UsageError
from tests.conftest import MODELS

NORM = MODELS / "norm_steps"
STATISTICS = ("mean", "variance")
BOTH = "'gamma' and 'beta' are frozen whole"


def record(*freeze, **options):
    plan = graphfreeze.plan(NORM, freeze=list(freeze), **options)
    (found,) = plan.meta_graphs[0].batch_norms
    frozen = {v.name for v in plan.meta_graphs[0].variables if v.frozen}
    return plan, found, frozen


@pytest.mark.parametrize(
    ("freeze", "options", "choice", "reason", "held"),
    [
        (["gamma", "beta"], {}, "freeze-stats", BOTH, True),
        (["gamma", "beta"], {"batch_norm": "freeze-stats"}, "freeze-stats", BOTH, True),
        (["gamma", "beta"], {"batch_norm": "update"}, "update", "nothing selects its moving statistics", False),
        (["gamma", "beta"], {"batch_norm": "inference"}, "inference", BOTH, True),
        (["gamma", "beta"], {"train": "mean"}, "update", "a rule says to train its moving statistics", False),
        (["gamma"], {}, "update", "'beta' is not frozen whole", False),
        (["gamma[:2]", "beta"], {"batch_norm": "inference"}, "update", "'gamma' is not frozen whole", False),
        (["kernel"], {}, "update", "'gamma' and 'beta' are not frozen whole", False),
        (["mean", "variance"], {"batch_norm": "update"}, "freeze-stats", "its moving statistics are selected", True),
        (["mean", "variance"], {"batch_norm": "inference"}, "inference", "its moving statistics are selected", True),
    ],
)
def test_the_choice_and_why(freeze, options, choice, reason, held):
    plan, found, frozen = record(*freeze, **options)
    assert (found.choice, found.reason) == (choice, reason)
    assert (found.gamma, found.beta, found.moving_mean, found.moving_variance) == ("gamma", "beta", *STATISTICS)
    assert sorted(place.op for place in found.places) == ["FusedBatchNormV3", "batch_normalization"]
    assert (set(STATISTICS) <= frozen) == held
    assert type(plan).from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_statistics_say_whose_they_are():
    plan, _, _ = record("gamma", "beta")
    for variable in plan.meta_graphs[0].variables:
        if variable.name in STATISTICS:
            assert variable.reason == f"statistic, held by guards on what writes it; batch norm: {BOTH}"
            assert {w.guard for w in variable.writes} == {"does not run"}


def test_inference_warns_of_other_outputs():
    plan, _, _ = record("gamma", "beta", batch_norm="inference")
    (words,) = [w for w in plan.warnings if "inference" in w]
    assert words.startswith("'gamma': with --batch-norm inference, training mode in '__inference_train_")
    assert words.endswith(
        "uses the stored statistics instead of the batch's, so what it gives out differs from the source's, on purpose"
    )


def test_a_spec_file_says_it_and_a_call_says_otherwise(tmp_path):
    spec = tmp_path / "spec.toml"
    spec.write_text('freeze = ["gamma", "beta"]\nbatch_norm = "update"\n')
    assert record(spec=spec)[1].choice == "update"
    assert record(spec=spec, batch_norm="inference")[1].choice == "inference"
    assert record(spec=spec)[0].spec["batch_norm"] == "update"
    spec.write_text('freeze = "gamma"\nbatch_norm = "freeze"\n')
    with pytest.raises(UsageError) as raised:
        record(spec=spec)
    assert str(raised.value) == (
        f"{spec}: 'batch_norm' must be one of freeze-stats, update, inference, found 'freeze'."
    )


def test_an_unknown_choice():
    with pytest.raises(UsageError) as raised:
        record("gamma", batch_norm="eval")
    assert str(raised.value) == ("Unknown batch_norm 'eval'. Expected one of 'freeze-stats', 'update', 'inference'")


def test_a_stored_plan_is_executed_with_its_choice(tmp_path):
    plan, _, _ = record("gamma", "beta", batch_norm="inference")
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan.to_dict()))
    graphfreeze.rewrite(NORM, tmp_path / "stored", plan=file)
    graphfreeze.rewrite(NORM, tmp_path / "direct", freeze=["gamma", "beta"], batch_norm="inference")
    assert graphfreeze.diff(tmp_path / "stored", tmp_path / "direct").changes == ()


def test_a_layer_norm_is_no_batch_norm():
    plan = graphfreeze.plan(MODELS / "layer_norm_transformer", freeze="**", allow_empty=True)
    assert plan.meta_graphs[0].batch_norms == ()


def test_the_command_line_says_what_and_why():
    from graphfreeze.cli.program import program

    arguments = ["plan", str(NORM), "--freeze", "{gamma,beta}", "--batch-norm", "inference"]
    done = CliRunner().invoke(program(), arguments, prog_name="graphfreeze", env={"COLUMNS": "160", "NO_COLOR": "1"})
    assert done.exit_code == 0
    assert f"batch norm 'gamma': inference, {BOTH}\n" in done.stdout
