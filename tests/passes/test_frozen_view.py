"""What ``inspect`` says of a rewritten model is what ``plan`` said before."""

import pytest

import graphfreeze

FIELDS = ("kind", "trainable", "frozen", "strategy", "copy", "strict", "enabled", "optimizer_bytes")
KERNEL = "dense_0/kernel"


def shown(plan):
    (meta,) = plan.meta_graphs
    return {v.path: {f: getattr(v, f) for f in FIELDS} for v in meta.variables if "/graphfreeze/" not in v.name}


@pytest.mark.parametrize(
    "options",
    [
        {"freeze": KERNEL},
        {"freeze": KERNEL, "strict": True},
        {"freeze": f"{KERNEL}[:2]"},
        {"freeze": f"{KERNEL}[:2]", "strategy": "mask"},
        {"freeze": f"{KERNEL}[[0, 1], [1, 0]]", "copy": "live"},
    ],
)
def test_a_rewritten_model_shows_what_its_plan_said(fixture_model, tmp_path, options):
    made = graphfreeze.rewrite(fixture_model("mlp"), tmp_path / "out", **options)
    assert shown(graphfreeze.inspect(tmp_path / "out")) == shown(made)


def test_a_variable_that_was_turned_on(fixture_model, tmp_path):
    options = {"train": "norm/moving_mean", "freeze": "conv/**", "enable": True}
    made = graphfreeze.rewrite(fixture_model("keras_conv"), tmp_path / "out", **options)
    after = shown(graphfreeze.inspect(tmp_path / "out"))
    (name,) = (path for path, data in shown(made).items() if data["enabled"])
    assert after[name]["enabled"]
    assert not after[name]["trainable"]
    assert {p: d for p, d in after.items() if p != name} == {p: d for p, d in shown(made).items() if p != name}


def test_a_model_without_a_freeze(fixture_model):
    assert not any(
        data["frozen"] or data["strategy"] for data in shown(graphfreeze.inspect(fixture_model("mlp"))).values()
    )
