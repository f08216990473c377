"""Rules meeting variables: who wins, what is never covered, and every message."""

from dataclasses import replace

import numpy as np
import pytest

from graphfreeze.errors import GraphfreezeError, NoMatchError, SelectorSyntaxError, UsageError
from graphfreeze.selection.parser import parse_selector
from graphfreeze.selection.resolve import resolve
from graphfreeze.selection.spec import make_spec, read_spec
from graphfreeze.selection.variables import VariableView, nearest_names


def weight(name, shape=(4, 6), **changes):
    path = changes.pop("path", f"layers/{name}")
    view = VariableView(path, f"{name}:0", path, f"{path}/.V", shape, "float32", "weight", True)
    return replace(view, **changes)


def statistic(name, shape=(6,)):
    return weight(name, shape, kind="statistic", trainable=False)


def state(name, shape=(), dtype="int64"):
    return weight(name, shape, kind="state", trainable=False, dtype=dtype)


MODEL = [
    weight("emb/table", (50, 4)),
    weight("dense/kernel"),
    weight("dense/bias", (6,)),
    statistic("norm/mean"),
    weight("norm/gamma", (6,)),
    weight("scale", ()),
    state("seed", (2,)),
    state("rate", (), "float32"),
]
COUNT = "The model has 8 variables: graphfreeze inspect MODEL"
EXACTLY = "Name one exactly, with --state to freeze it or --enable to train it."
VALUES = {"layers/dense/kernel/.V": np.arange(24, dtype=np.float32).reshape(4, 6) - 3}


def run(freeze=(), train=(), *, model=MODEL, enable=False, state=False, file=None):
    rules = make_spec(freeze, train, file=file).rules
    return resolve(rules, model, enable=enable, state=state, read_values=VALUES.__getitem__)


def frozen(resolution):
    """Frozen counts by name, of touched variables."""
    return {touched.variable.short_name: touched.frozen.count for touched in resolution.variables}


def test_no_rules_touch_nothing():
    resolution = run()
    assert (resolution.variables, resolution.matches, resolution.notes) == ((), (), ())
    assert resolution.frozen(MODEL[0]).is_empty


def test_part_all_none_wrong_shape():
    """The named table: every way one selector can meet one variable."""
    assert frozen(run(["dense/kernel[:, :2]"])) == {"dense/kernel": 8}
    assert run(["dense/kernel"]).variables[0].frozen.is_whole
    assert run(["dense/kernel[:]"]).variables[0].frozen.is_whole
    with pytest.raises(NoMatchError):
        run(["dense/kernel[0:0]"])
    with pytest.raises(UsageError):
        run(["dense/kernel[0, 0, 0]"])


def test_globs_cover_weights_and_statistics_never_state():
    resolution = run(["**"])
    assert frozen(resolution) == {
        "emb/table": 200, "dense/kernel": 24, "dense/bias": 6, "norm/mean": 6, "norm/gamma": 6, "scale": 1,
    }  # fmt: skip
    assert resolution.notes == ()


def test_the_last_rule_decides():
    resolution = run(["dense/kernel"], ["dense/kernel[:, 2:4]"])
    assert resolution.variables[0].frozen.to_mask()[0].astype(int).tolist() == [1, 1, 0, 0, 1, 1]
    assert resolution.variables[0].rules == (0, 1)
    assert [(match.elements, match.variables) for match in resolution.matches] == [
        (24, ("layers/dense/kernel",)),
        (8, ("layers/dense/kernel",)),
    ]


def test_file_order(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text('[[rule]]\ntrain = "dense/*"\n[[rule]]\nfreeze = "dense/bias"')
    assert frozen(run(file=read_spec(path))) == {"dense/kernel": 0, "dense/bias": 6}
    assert frozen(run(train=["dense/bias[0]"], file=read_spec(path))) == {"dense/kernel": 0, "dense/bias": 5}


def test_only_train_rules_freeze_the_rest():
    resolution = run(train=["dense/*", "norm/mean"])
    assert frozen(resolution) == {
        "emb/table": 200, "dense/kernel": 0, "dense/bias": 0, "norm/mean": 0, "norm/gamma": 6, "scale": 1,
    }  # fmt: skip
    assert [touched.rules for touched in resolution.variables] == [(), (0,), (0,), (1,), (), ()]
    assert frozen(run(train=["dense/kernel[:2]"]))["dense/kernel"] == 12


def test_matching_by_name_by_path_and_by_pattern():
    assert frozen(run(["layers/dense/kernel"])) == {"dense/kernel": 24}
    assert frozen(run(["dense/kernel:0"])) == {"dense/kernel": 24}
    assert frozen(run(["re:.*/(kernel|gamma)"])) == {"dense/kernel": 24, "norm/gamma": 6}
    assert frozen(run(["re:dense/.*@@[:2]"])) == {"dense/kernel": 12, "dense/bias": 2}


def test_predicates_read_stored_values():
    assert frozen(run(["dense/kernel[< 0]"])) == {"dense/kernel": 3}
    with pytest.raises(NoMatchError) as caught:
        run(["dense/kernel[< -3]"])
    assert str(caught.value) == "'dense/kernel[< -3]' covers no element of 'dense/kernel'."


def test_an_index_under_a_glob_applies_to_each_variable():
    assert frozen(run(["{emb/table,dense/kernel}[4:, :1]"])) == {"emb/table": 46}
    with pytest.raises(UsageError) as caught:
        run(["{emb,dense}/*[10:]"])
    assert str(caught.value) == (
        "'{emb,dense}/*[10:]' does not fit variable 'dense/kernel' of shape (4, 6): "
        "start 10 lies beyond axis 0, which has 4 elements."
    )


def test_names_that_occur_twice():
    model = [weight("Variable", path="a/w"), weight("Variable", path="b/w"), weight("Variable", path="v")]
    resolution = run(["Variable"], model=model)
    assert [touched.variable.path for touched in resolution.variables] == ["a/w", "b/w", "v"]
    assert resolution.notes == ("'Variable' names 3 variables, all selected: 'a/w', 'b/w', 'v'.",)
    resolution = run(["b/w"], model=model)
    assert [touched.variable.path for touched in resolution.variables] == ["b/w"]
    assert resolution.notes == ()
    with pytest.raises(UsageError) as caught:
        run(["b/w[9]"], model=model)
    assert "does not fit variable 'b/w' of shape (4, 6)" in str(caught.value)


def test_variables_without_elements_can_be_named_whole():
    model = [weight("none", (0, 3)), weight("some")]
    assert frozen(run(["*"], model=model)) == {"none": 0, "some": 24}
    assert frozen(run(["none"], model=model)) == {"none": 0}


def test_unknown_shape():
    model = [weight("w", None)]
    resolution = run(["w"], model=model)
    assert resolution.variables[0].frozen.is_whole
    assert resolution.matches[0].elements == 1
    assert run(["w"], ["w[...]"], model=model).variables[0].frozen.is_empty
    with pytest.raises(UsageError):
        run(["w[0]"], model=model)


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        (
            "dense/kernal",
            "No variable matches 'dense/kernal'. Did you mean 'dense/kernel'? " + COUNT,
        ),
        (
            "dense/kernal[:, :900]",
            "No variable matches 'dense/kernal[:, :900]'. Did you mean 'dense/kernel'? " + COUNT,
        ),
        ("xyzzy", "No variable matches 'xyzzy'. " + COUNT),
        ("re:xyzzy@@[0]", "No variable matches 're:xyzzy@@[0]'. " + COUNT),
        (
            "se*d",
            "'se*d' matches only state ('seed'), which globs never cover. " + EXACTLY,
        ),
        (
            "re:seed|rate",
            "'re:seed|rate' matches only state ('seed', 'rate'), which globs never cover. " + EXACTLY,
        ),
        ("dense/*[1:1]", "'dense/*[1:1]' covers no element of 'dense/kernel', 'dense/bias'."),
    ],
)
def test_rules_that_match_nothing(selector, message):
    with pytest.raises(NoMatchError) as caught:
        run([selector])
    assert str(caught.value) == message
    assert caught.value.exit_code == 3


def test_no_match_in_small_models():
    with pytest.raises(NoMatchError) as caught:
        run(["x"], model=[weight("alpha")])
    assert str(caught.value) == "No variable matches 'x'. The model has 1 variable: graphfreeze inspect MODEL"
    with pytest.raises(NoMatchError) as caught:
        run(["x"], model=[])
    assert str(caught.value) == "No variable matches 'x'. The model has 0 variables: graphfreeze inspect MODEL"


@pytest.mark.parametrize(
    ("selector", "near"),
    [
        ("conv2d_9/*", ["conv2d_8/kernel", "conv2d_8/bias"]),
        ("**/kernal", ["conv2d_8/kernel", "head/kernel"]),
        ("haed/**", ["head/kernel"]),
        ("kernel", ["head/kernel"]),
        ("m/heap/kernel", ["m/head/kernel"]),
        ("re:head/kernal", ["head/kernel"]),
        ("other", []),
    ],
)
def test_nearest_names(selector, near):
    model = [weight(name, path=f"m/{name}") for name in ("conv2d_8/kernel", "conv2d_8/bias", "head/kernel")]
    assert nearest_names(parse_selector(selector), model) == near


def test_nearest_names_are_at_most_five():
    model = [weight(f"conv_{number}/kernel") for number in range(9)]
    assert nearest_names(parse_selector("conv_10/kernel"), model) == [f"conv_{n}/kernel" for n in range(5)]


def test_state_is_frozen_only_by_exact_name_and_state():
    with pytest.raises(UsageError) as caught:
        run(["seed"])
    assert str(caught.value) == (
        "'seed' is state (int64), not a weight or a statistic. Pass --state to freeze it all the same."
    )
    assert frozen(run(["seed[0]"], state=True)) == {"seed": 1}
    with pytest.raises(NoMatchError):
        run(["see?"], state=True)
    assert "seed" not in frozen(run(["**"], state=True))


def test_train_does_not_turn_on_what_the_source_holds_untrainable():
    model = [*MODEL, weight("old/kernel", trainable=False), weight("old/bias", (6,), trainable=False)]
    with pytest.raises(UsageError) as caught:
        run(["**"], ["old/kernel"], model=model)
    assert str(caught.value) == (
        "Cannot train 'old/kernel': the source holds it untrainable. Pass --enable to turn it on."
    )
    resolution = run(["**"], ["{old,dense}/*"], model=model)
    (note,) = resolution.notes
    assert note == (
        "'{old,dense}/*' leaves out 'old/kernel', 'old/bias', "
        "which the source holds untrainable; pass --enable to turn it on."
    )
    assert frozen(resolution)["old/kernel"] == 24
    assert frozen(resolution)["dense/kernel"] == 0
    assert not any(touched.enabled for touched in resolution.variables)


def test_enable_turns_on_only_what_the_rule_names():
    model = [weight("old/kernel", trainable=False), weight("new/kernel")]
    resolution = run(["new/*"], ["old/kernel[:1]"], model=model, enable=True)
    assert [touched.enabled for touched in resolution.variables] == [True, False]
    assert frozen(resolution) == {"old/kernel": 18, "new/kernel": 24}
    resolution = run(train=["**"], model=model, enable=True)
    assert [touched.enabled for touched in resolution.variables] == [True, False]
    assert frozen(resolution) == {"old/kernel": 0, "new/kernel": 0}
    resolution = run(["old/kernel[0]"], ["old/kernel[1:]"], model=model, enable=True)
    assert frozen(resolution) == {"old/kernel": 6}


def test_training_state():
    with pytest.raises(UsageError) as caught:
        run(train=["rate"])
    assert str(caught.value) == "Cannot train 'rate': the source holds it untrainable. Pass --enable to turn it on."
    resolution = run(train=["rate"], enable=True)
    assert frozen(resolution)["rate"] == 0
    assert [touched.variable.short_name for touched in resolution.variables if touched.enabled] == ["rate"]
    with pytest.raises(UsageError) as caught:
        run(train=["seed"], enable=True)
    assert str(caught.value) == "Cannot train 'seed': no gradient reaches dtype int64."


def test_statistics_have_no_switch():
    resolution = run(["norm/*"], ["norm/mean"])
    assert frozen(resolution) == {"norm/mean": 0, "norm/gamma": 6}
    assert not any(touched.enabled for touched in resolution.variables)
    assert not any(touched.enabled for touched in run(train=["norm/mean"], enable=True).variables)


def test_mask_file_is_read_once_per_resolution(tmp_path, monkeypatch):
    reads = []
    load = np.load
    monkeypatch.setattr(np, "load", lambda path, **options: reads.append(path) or load(path, **options))
    np.save(tmp_path / "m.npy", np.eye(6, dtype=np.bool_)[0])
    rules = make_spec(["{norm,dense}/{bias,gamma}[@m.npy]"], base_dir=tmp_path).rules
    resolution = resolve(rules, MODEL, enable=False, state=False, read_values=VALUES.__getitem__)
    assert frozen(resolution) == {"dense/bias": 1, "norm/gamma": 1}
    assert reads == [tmp_path / "m.npy"]


def test_messages_begin_with_the_place_in_the_spec_file(tmp_path):
    path = tmp_path / "s.toml"
    for text, error in [
        ('freeze = ["a", "dense/kernel[9]"]', NoMatchError),
        ('freeze = ["dense/kernel[9]"]', UsageError),
        ('freeze = ["seed"]', UsageError),
        ('train = ["rate"]', UsageError),
    ]:
        path.write_text(text)
        with pytest.raises(error) as caught:
            run(file=read_spec(path))
        assert str(caught.value).startswith(f"{path}: {text[:6].strip()}")
        assert isinstance(caught.value, GraphfreezeError)
        assert not isinstance(caught.value, SelectorSyntaxError)


def test_many_names_are_cut_short():
    model = [weight(f"w{number}") for number in range(8)]
    with pytest.raises(NoMatchError) as caught:
        run(["w*[0:0]"], model=model)
    assert str(caught.value) == "'w*[0:0]' covers no element of 'w0', 'w1', 'w2', 'w3', 'w4' and 3 more."


def test_variables_without_object_graph():
    model = [weight("x", path=""), weight("y", path="")]
    model = [replace(view, id=number) for number, view in enumerate(model)]
    assert frozen(run(["x"], model=model)) == {"x": 24}
    assert frozen(run(["**"], model=model)) == {"x": 24, "y": 24}


def test_resolving_thousands_of_variables_is_quick():
    model = [weight(f"block_{number}/kernel", (512, 512)) for number in range(3000)]
    assert len(run(["**[:256]"], ["block_{0..99}/*"], model=model).variables) == 3000
    with pytest.raises(NoMatchError):
        run(["block_9999/kernal"], model=model)
