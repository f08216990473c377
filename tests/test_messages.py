"""Every error class and its exit code, and the exact words of what the calls of the API refuse.

What selectors, files, plans and traces refuse is tested beside them; this is what remains, and the table of classes.
"""

import json
import re

import pytest

import graphfreeze
from graphfreeze import errors
from graphfreeze.errors import (
    GraphfreezeError,
    InputOutputError,
    InternalError,
    NoMatchError,
    NothingToTrainError,
    SelectorSyntaxError,
    UnsupportedModelError,
    UsageError,
    VerificationError,
)
from tests.conftest import MODELS
from tests.passes.rewriting import rewritten

EXIT_CODES = {
    GraphfreezeError: 1,
    InternalError: 1,
    UsageError: 2,
    SelectorSyntaxError: 2,
    NoMatchError: 3,
    UnsupportedModelError: 4,
    VerificationError: 5,
    InputOutputError: 6,
    NothingToTrainError: 7,
}
MLP = MODELS / "mlp"


def words(call, kind, *arguments, **options):
    with pytest.raises(GraphfreezeError) as error:
        call(*arguments, **options)
    assert type(error.value) is kind
    return str(error.value)


def test_exit_codes_are_those_of_the_design():
    classes = {c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)}
    assert {c: c.exit_code for c in classes} == EXIT_CODES


@pytest.mark.parametrize("kind", EXIT_CODES)
def test_every_class_says_when_it_is_raised_and_stands_in_the_tree(kind):
    assert kind.__doc__.endswith(".") or "\n" in kind.__doc__
    line = next(line for line in errors.__doc__.splitlines() if kind.__name__ in line)
    number = re.search(r"\((\d)\)", line)
    assert number is None or int(number[1]) == kind.exit_code


def test_a_selector_error_shows_the_place():
    lines = words(graphfreeze.plan, SelectorSyntaxError, MLP, freeze="out/kernel[:, :2").splitlines()
    assert lines[0].endswith(", at column 17")
    assert lines[1:] == ["  out/kernel[:, :2", "                  ^"]


def test_no_match_offers_the_nearest():
    assert words(graphfreeze.plan, NoMatchError, MLP, freeze="out/kernal") == (
        "No variable matches 'out/kernal'. Did you mean 'out/kernel'? The model has 6 variables: graphfreeze inspect "
        "MODEL"
    )


def test_finalize_of_a_model_without_a_freeze(tmp_path):
    assert words(graphfreeze.finalize, UsageError, MLP, tmp_path / "out") == (
        f"'{MLP}' carries no freeze: graphfreeze finds none of its marks there. Give a model that graphfreeze rewrote, "
        "or one that was trained and saved from it"
    )


@pytest.mark.parametrize(
    "more", [{"freeze": "out/*"}, {"train": "out/*"}, {"add": True}, {"strategy": "mask"}, {"strict": True}]
)
def test_a_plan_and_something_else(tmp_path, more):
    plan = graphfreeze.plan(MLP, freeze="out/bias")
    assert words(graphfreeze.rewrite, UsageError, MLP, tmp_path / "out", plan=plan, **more) == (
        "A plan already says everything: give either plan, or selectors and options, not both"
    )
    assert not (tmp_path / "out").exists()


def test_a_plan_that_is_not_there(tmp_path):
    missing = tmp_path / "plan.json"
    assert words(graphfreeze.rewrite, InputOutputError, MLP, tmp_path / "out", plan=missing) == (
        f"Cannot read the plan '{missing}': No such file or directory"
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
)
def test_a_plan_that_is_not_json(tmp_path, content, problem):
    file = tmp_path / "plan.json"
    file.write_bytes(content)
    assert words(graphfreeze.rewrite, UsageError, MLP, tmp_path / "out", plan=file) == (
        f"'{file}' is not JSON ({problem}). Make a plan with: graphfreeze plan MODEL ... --json > plan.json"
    )


def test_a_plan_for_another_model(tmp_path):
    plan = graphfreeze.plan(MLP, freeze="out/bias")
    other = graphfreeze.plan(MODELS / "tied", freeze="projection")
    assert words(graphfreeze.rewrite, UsageError, MODELS / "tied", tmp_path / "out", plan=plan) == (
        f"The plan was made for another model: its source '{MLP}' has digest {plan.digest[:12]}, '{MODELS / 'tied'}' "
        f"has {other.digest[:12]}. Plan again with: graphfreeze plan MODEL ..."
    )


def test_a_stored_plan_is_executed_as_it_is(tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(graphfreeze.plan(MLP, freeze="out/bias[:1]").to_dict()))
    made = graphfreeze.rewrite(MLP, tmp_path / "out", plan=file)
    assert (made.command, [v.name for v in made.meta_graphs[0].touched()]) == ("rewrite", ["out/bias"])


def test_a_source_is_never_the_target():
    assert words(graphfreeze.rewrite, InputOutputError, MLP, MLP, freeze="out/bias", overwrite=True) == (
        f"'{MLP}' is the model being read. Write to another directory"
    )


def test_a_model_without_an_object_graph_in_its_checkpoint():
    def change(draft):
        draft.bundle_graph = None

    message = words(rewritten, UnsupportedModelError, "mlp", "out/bias[:1]", change=change)
    assert message.startswith("Cannot freeze part of 'out/bias': the checkpoint holds no value for it (key None).")


def other_saver(draft):
    """As of a model that restores by nodes of the main graph."""
    meta = draft.model.proto.meta_graphs[0]
    call = next(n for n in meta.graph_def.node if n.name == meta.saver_def.restore_op_name)
    call.op = "NoOp"
    del call.attr["f"]


def test_a_saver_that_is_no_function_call():
    assert re.sub(
        r"_\d+'", "_N'", words(rewritten, UnsupportedModelError, "mlp", "out/bias[:1]", change=other_saver)
    ) == (
        f"The saver of the model at '{MLP}' is not a function call ('StatefulPartitionedCall_N'), so loaders without "
        "objects could not restore the frozen copies. Save the model again with this TensorFlow's tf.saved_model.save."
    )


def test_a_whole_freeze_needs_no_saver():
    assert rewritten("mlp", "out/bias", change=other_saver).plan.meta_graphs[0].touched()


def test_messages_have_no_line_breaks_and_no_braces():
    """A message that forgot its f or a blank between two strings shows here."""
    from tests.planning.test_planning import planned

    found = [
        words(graphfreeze.plan, NoMatchError, MLP, freeze="x"),
        words(planned, NothingToTrainError, "mlp", "**"),
        words(planned, UsageError, "mlp", "out/bias[:1]", strategy="stop"),
    ]
    for message in found:
        assert "\n" not in message
        assert "{" not in message
        assert "  " not in message
