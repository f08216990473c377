"""What a plan says of whole models: strategies, warnings, bytes, refusals."""

import json
import re

import numpy as np
import pytest

from graphfreeze.errors import NoMatchError, NothingToTrainError, UnsupportedModelError, UsageError
from graphfreeze.planning import Plan, Storage, plan_model
from graphfreeze.planning.request import plan_task
from graphfreeze.savedmodel import open_draft
from graphfreeze.selection import Copy, Strategy, box_region, make_spec
from tests.conftest import MODELS
from tests.helpers.shared_models import shared_model


def planned(name, *freeze, train=(), change=None, command="plan", **options):
    draft = open_draft(MODELS / name if isinstance(name, str) else name)
    if change:
        change(draft)
    return plan_model(draft, plan_task(command, freeze, train, **options))


def variables(plan):
    return {v.name: v for v in plan.meta_graphs[0].variables}


def touched(plan):
    return {v.name: str(v.strategy) for v in plan.meta_graphs[0].touched()}


def test_inspect_plans_nothing():
    plan = planned("mlp", command="inspect")
    assert plan.command == "inspect"
    assert touched(plan) == {}
    assert plan.meta_graphs[0].signatures == ("hidden", "scores", "serving_default")
    assert (plan.meta_graphs[0].tags, plan.meta_graphs[0].format) == (("serve",), "TF2")
    assert [v.name for v in plan.meta_graphs[0].variables][:2] == ["dense_0/kernel", "dense_0/bias"]


def test_auto_over_a_model():
    plan = planned("mlp", "dense_0/*", "dense_1/kernel[:3]", "dense_1/bias[[0, 1, 3]]", "out/kernel[0, 0]")
    assert touched(plan) == {
        "dense_0/kernel": "stop",
        "dense_0/bias": "stop",
        "dense_1/kernel": "split",
        "dense_1/bias": "split",
        "out/kernel": "mask",
    }


def test_a_plan_of_any_fixture_survives_json(fixture_model):
    for name in ("mlp", "gathers", "keras_gru", "statistics", "slots"):
        plan = planned(name, "**", train=("**/kernel",) if name in ("mlp", "slots") else (), allow_empty=True)
        assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_optimizer_bytes_with_adam():
    plan = planned("mlp", "dense_0/kernel", "dense_1/kernel[:6]", "out/kernel[0, 0]")
    bytes_of = {name: v.optimizer_bytes for name, v in variables(plan).items()}
    assert bytes_of["dense_0/kernel"] == (2 * 4 * 48, 0)
    assert bytes_of["dense_1/kernel"] == (2 * 4 * 40, 2 * 4 * 10)
    assert bytes_of["out/kernel"] == (2 * 4 * 15, 2 * 4 * 15)
    assert bytes_of["out/bias"] == (2 * 4 * 3, 2 * 4 * 3)
    slots = variables(planned("slots", "dense/bias"))
    assert slots["adam/dense_kernel_0_momentum"].optimizer_bytes == (0, 0)


def test_optimizer_bytes_of_what_is_turned_on():
    plan = planned("keras_lists", "encoder/first/bias", train=("offset",), enable=True)
    assert variables(plan)["offset"].optimizer_bytes == (0, 2 * 4 * 3)
    assert variables(plan)["offset"].reason == "turned on by --enable"
    half = planned("keras_lists", train=("offset[:1]",), enable=True)
    assert variables(half)["offset"].optimizer_bytes == (0, 2 * 4)


@pytest.mark.parametrize(
    ("dtype", "size"), [("half", 2), ("brain", 2), ("double", 8), ("complex_single", 8), ("complex_double", 16)]
)
def test_bytes_of_other_dtypes(dtype, size):
    found = variables(planned("dtypes", f"{dtype}[:1]"))[dtype]
    assert (found.bytes, found.optimizer_bytes) == (12 * size, (24 * size, 16 * size))


def test_mask_warns_of_optimizers_that_look_at_whole_tensors():
    plan = planned("mlp", "out/kernel[0, 0]")
    (warning,) = plan.warnings
    assert warning == (
        "'out/kernel': strategy 'mask' is exact for element-wise optimizers; those with statistics over a whole tensor "
        "(Adafactor, Lamb, Lars, Muon) still see frozen elements. Use a region that 'split' can hold for them"
    )


def test_warnings_name_three_and_count_the_rest():
    plan = planned("mlp", "**/kernel[0, 0]", "**/bias[0]", strategy="mask")
    assert plan.warnings[0].startswith("'dense_0/kernel', 'dense_0/bias', 'dense_1/kernel' and 3 more: strategy 'mask'")


def test_live_warns_of_what_it_does_not_hold_against():
    plan = planned("mlp", "out/kernel[0, 0]", copy="live")
    assert plan.warnings[1] == (
        "'out/kernel': copy 'live' holds against writes in the graph, not against weight decay or averaging by a "
        "Python optimizer. Use copy 'snapshot' for those"
    )
    assert variables(plan)["out/kernel"].copy is Copy.LIVE


def test_a_write_is_shown_with_its_guard():
    plan = planned("statistics", "moving_mean", "scale[:1]")
    (moved,) = variables(plan)["moving_mean"].writes
    assert (moved.op, moved.guard) == ("AssignSubVariableOp", "does not run")
    assert variables(plan)["moving_mean"].reason == "statistic, held by guards on what writes it"
    scale = variables(plan)["scale"]
    assert [w.guard for w in scale.writes] == ["box put back"]
    assert re.sub(r"_\d+'", "_N'", scale.reason) == (
        "the frozen part is a box: [0]; function '__inference_project_N' writes the variable (node 'AssignVariableOp', "
        "AssignVariableOp)"
    )


def test_a_write_is_shown_with_the_source_of_its_gradient():
    plan = planned("train_keras", "table[:2]", "kernel")
    assert {w.node: w.gradient for w in variables(plan)["table"].writes} == {
        "adam_w/AssignSubVariableOp": None,  # decay
        "adam_w/AssignSubVariableOp_2": "masked at 'gradient_tape/Gather/Reshape'",
    }
    assert variables(plan)["kernel"].writes[1].gradient == "masked at 'gradient_tape/MatMul/MatMul_1'"
    assert [w.gradient for w in variables(planned("train_tf_keras", "table[:2]"))["table"].writes] == [None]
    assert not any(w.gradient for v in variables(planned("train_keras", command="inspect")).values() for w in v.writes)


def test_split_does_not_hold_what_the_graph_writes():
    with pytest.raises(UsageError) as error:
        planned("statistics", "scale[:1]", strategy="split")
    assert re.sub(r"_\d+'", "_N'", str(error.value)) == (
        "Strategy 'split' cannot hold [0] of 'scale': function '__inference_project_N' writes the variable (node "
        "'AssignVariableOp', AssignVariableOp), and a part of its own would not follow. Leave --strategy out and "
        "graphfreeze picks one that can"
    )


def test_warnings_call_variables_of_one_name_by_their_paths():
    plan = planned("unnamed", "first[0, 0]", "pair/1[0, 0]")
    assert plan.warnings[0].startswith("'first', 'pair/1': strategy 'mask'")


def test_nothing_left_to_train():
    with pytest.raises(NothingToTrainError) as error:
        planned("mlp", "**")
    assert str(error.value) == (
        "The freeze leaves nothing to train: every trainable element of the model is frozen. Freeze less, or pass "
        "--allow-empty"
    )
    assert set(touched(planned("mlp", "**", allow_empty=True)).values()) == {"stop"}


def test_one_element_left_is_something_to_train():
    everything_but_one = ("**",)
    assert touched(planned("mlp", *everything_but_one, train=("out/bias[0]",)))["out/bias"] == "split"


def test_held_regions_are_extended_by_add():
    task = plan_task("plan", ["out/bias[0]"], held={"out/bias": box_region((3,), [slice(1, 2)])})
    plan = plan_model(open_draft(MODELS / "mlp"), task)
    assert np.flatnonzero(variables(plan)["out/bias"].region.to_mask()).tolist() == [0, 1]


def test_held_regions_alone_are_planned():
    task = plan_task("inspect", held={"out/bias": box_region((3,), [slice(1, 2)])})
    plan = plan_model(open_draft(MODELS / "mlp"), task)
    assert touched(plan) == {"out/bias": "split"}


def test_state_is_held_as_it_is():
    plan = planned("digits", "seed_generator/seed_generator_state", state=True)
    found = variables(plan)["seed_generator/seed_generator_state"]
    assert (found.strategy, found.reason, found.frozen) == (Strategy.STOP, "state, held as it is", 2)
    assert found.atoms == ()


def test_a_variable_of_open_shape_takes_the_checkpoints():
    found = variables(planned("shapes", "open[:2]"))["open"]
    assert (found.shape, found.elements, found.frozen, str(found.strategy)) == ((6, 4), 24, 8, "split")


def drop(*keys):
    def change(draft):
        draft.drop.update(keys)

    return change


def test_a_variable_without_a_value_can_be_stopped_and_not_split():
    missing = drop("open/.ATTRIBUTES/VARIABLE_VALUE")
    found = variables(planned("shapes", "open", change=missing))["open"]
    assert (found.shape, found.frozen, str(found.strategy)) == (None, 0, "stop")
    kernel = drop("kernel/.ATTRIBUTES/VARIABLE_VALUE")
    assert touched(planned("shapes", "kernel", change=kernel)) == {"kernel": "stop"}
    with pytest.raises(UnsupportedModelError) as error:
        planned("shapes", "kernel[:2]", change=kernel)
    assert str(error.value) == (
        "Cannot freeze part of 'kernel': the checkpoint holds no value for it (key "
        "'kernel/.ATTRIBUTES/VARIABLE_VALUE'). Strategy 'split' copies values; freeze the whole variable without "
        "--strict, or save the model with its variables"
    )
    with pytest.raises(UnsupportedModelError, match="Strategy 'stop' copies values"):
        planned("shapes", "kernel", change=kernel, strict=True)


def test_an_index_on_an_unknown_shape_is_refused():
    with pytest.raises(UsageError, match="shape"):
        planned("shapes", "open[:2]", change=drop("open/.ATTRIBUTES/VARIABLE_VALUE"))


def test_an_unknown_use_is_refused_with_function_node_and_op():
    def change(draft):
        for function in draft.model.proto.meta_graphs[0].graph_def.library.function:
            for node in function.node_def:
                if node.op == "ResourceGather":
                    node.op = "MyGather"

    assert touched(planned("embedding", "dense/kernel", change=change)) == {"dense/kernel": "stop"}
    with pytest.raises(UnsupportedModelError) as error:
        planned("embedding", "emb/embeddings", change=change)
    assert re.sub(r"_\d+'", "_N'", str(error.value)) == (
        "Cannot freeze 'emb/embeddings': node 'embedding_lookup' in function '__inference___call___N' hands it to op "
        "'MyGather', which is in no table of ops that take a variable, so its effect on the variable is unknown. Leave "
        "the variable out, or save the model without that op"
    )


def test_a_tf1_graph_is_planned():
    plan = planned(shared_model("zoo-saved-model-signature"), "dense/kernel[:1]")
    assert plan.meta_graphs[0].format == "TF1"
    assert [(v.name, v.strategy) for v in plan.meta_graphs[0].touched()] == [("dense/kernel", "split")]


def twice(draft):
    """A second meta graph with another tag."""
    metas = draft.model.proto.meta_graphs
    metas.add().CopyFrom(metas[0])
    metas[1].meta_info_def.tags.append("gpu")


def test_every_meta_graph_is_planned():
    plan = planned("mlp", "out/bias", change=twice)
    assert [m.tags for m in plan.meta_graphs] == [("serve",), ("serve", "gpu")]
    assert [len(m.touched()) for m in plan.meta_graphs] == [1, 1]


def test_tags_name_exactly_one_meta_graph():
    assert [m.tags for m in planned("mlp", "out/bias", change=twice, tags=["gpu", "serve"]).meta_graphs] == [
        ("serve", "gpu")
    ]
    assert [m.tags for m in planned("mlp", "out/bias", change=twice, tags="serve").meta_graphs] == [("serve",)]
    with pytest.raises(UsageError) as error:
        planned("mlp", "out/bias", change=twice, tags=["tpu"])
    assert str(error.value) == (
        "No meta graph has exactly the tags ['tpu']. The model's meta graphs have: ['serve'], ['gpu', 'serve']"
    )


def test_tags_that_leave_out_a_reader_of_moved_storage():
    with pytest.raises(UsageError) as error:
        planned("mlp", "out/bias[:1]", change=twice, tags="serve")
    assert str(error.value) == (
        "Meta graph ['gpu', 'serve'] reads 'out/bias' too, and --tags leaves it out: it would go on with the old "
        "storage. Leave --tags out, or name a variable that it does not read"
    )


def test_a_rule_that_fits_nothing():
    with pytest.raises(NoMatchError):
        planned("mlp", "dense_7/kernel")


# --- the arguments of a call


def test_rules_of_the_file_come_first_and_options_of_the_call_win(tmp_path):
    file = tmp_path / "freeze.toml"
    file.write_text('freeze = ["out/*"]\nstrategy = "mask"\ncopy = "live"\n')
    task = plan_task("plan", "a", ["b"], spec=file, strategy="split")
    assert [str(rule) for rule in task.rules] == ["freeze out/*", "freeze a", "train b"]
    assert (task.options.strategy, task.options.copy) == (Strategy.SPLIT, Copy.LIVE)
    again = plan_task("plan", spec=make_spec(["c"]))
    assert [str(rule) for rule in again.rules] == ["freeze c"]


def test_a_call_without_rules():
    with pytest.raises(UsageError) as error:
        plan_task("plan")
    assert str(error.value) == (
        "Nothing says what to freeze. Pass --freeze or --train with a selector, or --spec with a file"
    )


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("strategy", "spilt", "Unknown strategy 'spilt'. Expected one of 'auto', 'stop', 'split', 'mask'"),
        ("copy", "dead", "Unknown copy 'dead'. Expected one of 'snapshot', 'live'"),
    ],
)
def test_unknown_choices(option, value, words):
    with pytest.raises(UsageError) as error:
        plan_task("plan", "a", **{option: value})
    assert str(error.value) == words


def test_storage_of_the_parts_of_a_plan():
    plan = planned("unnamed", "first[:1]", "second[[0], [0]]")
    names = {v.path: [(a.storage, a.name) for a in v.atoms] for v in plan.meta_graphs[0].touched()}
    assert names == {
        "first": [(Storage.BASE, None), (Storage.PART, "first/graphfreeze/trainable")],
        "second": [(Storage.BASE, None), (Storage.COPY, "second/graphfreeze/frozen")],
    }
