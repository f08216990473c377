"""What phases make of variables: atoms, lists, and what is refused."""

import json

import pytest

import graphfreeze
from graphfreeze.errors import NothingToTrainError, UnsupportedModelError, UsageError
from graphfreeze.planning import Plan, Storage
from tests.conftest import MODELS

OVERLAP = """
freeze = "emb/embeddings"
[[phase]]
name = "a"
train = "emb/embeddings[:5]"
freeze = "dense/bias"
[[phase]]
name = "b"
train = "emb/embeddings[3:9]"
freeze = "dense/*"
"""


def plan(folder, text, model="embedding", **options):
    (folder / "spec.toml").write_text(text)
    return graphfreeze.plan(MODELS / model, spec=folder / "spec.toml", **options)


def held(found):
    return {v.name: v for v in found.meta_graphs[0].variables}


def test_atoms_are_the_coarsest_that_serve_every_phase(tmp_path):
    found = plan(tmp_path, OVERLAP)
    table = held(found)["emb/embeddings"]
    told = [(a.storage, a.region.slices[0] if a.name else None, a.name, a.phases) for a in table.atoms]
    stem = "emb/embeddings/graphfreeze/trainable"
    assert told == [
        (Storage.BASE, None, None, ()),
        (Storage.PART, slice(3, 5, 1), stem, ("a", "b")),
        (Storage.PART, slice(0, 3, 1), f"{stem}_1", ("a",)),
        (Storage.PART, slice(5, 9, 1), f"{stem}_2", ("b",)),
    ]
    assert (table.strategy, table.frozen, table.optimizer_bytes) == ("split", 12, (384, 288))


def test_whole_variables_need_no_storage(tmp_path):
    kernel, bias = (held(plan(tmp_path, OVERLAP))[f"dense/{n}"] for n in ("kernel", "bias"))
    assert (kernel.strategy, kernel.reason, kernel.frozen) == ("stop", "whole variable, held in 'b'", 0)
    assert [(a.storage, a.name, a.phases) for a in kernel.atoms] == [(Storage.BASE, None, ("a",))]
    # Every phase holds it, as without phases.
    assert (bias.strategy, bias.reason, bias.frozen, bias.varies) == ("stop", "whole variable", 3, False)
    assert (kernel.in_phase("a").strategy, kernel.in_phase("b").strategy) == (None, "stop")


def test_the_lists_of_phases(tmp_path):
    a, b = plan(tmp_path, OVERLAP).meta_graphs[0].phases
    stem = "emb/embeddings/graphfreeze/trainable"
    assert (a.variables, a.trainable, a.optimizer_bytes) == ((stem, f"{stem}_1", "dense/kernel"), 32, 256)
    assert (b.variables, b.trainable, b.optimizer_bytes) == ((stem, f"{stem}_2"), 24, 192)
    assert a.functions == ("__call__", "signature serving_default@a")


def test_what_all_phases_hold_alike_is_held_as_without_phases(tmp_path):
    text = 'freeze = "emb/embeddings[[0, 1], [1, 2]]"\n[[phase]]\nname = "a"\n[[phase]]\nname = "b"\n'
    without = graphfreeze.plan(MODELS / "embedding", freeze="emb/embeddings[[0, 1], [1, 2]]")
    assert held(plan(tmp_path, text)) == held(without)


def test_the_plan_is_json_and_comes_back(tmp_path):
    found = plan(tmp_path, OVERLAP)
    assert Plan.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    (tmp_path / "plan.json").write_text(json.dumps(found.to_dict()))
    graphfreeze.rewrite(MODELS / "embedding", tmp_path / "one", plan=tmp_path / "plan.json")
    graphfreeze.rewrite(MODELS / "embedding", tmp_path / "two", spec=tmp_path / "spec.toml")
    assert graphfreeze.diff(tmp_path / "one", tmp_path / "two").equal
    shown = graphfreeze.inspect(tmp_path / "one").meta_graphs[0]
    assert shown.phases == found.meta_graphs[0].phases
    assert [p["name"] for p in shown.freeze.spec["phases"]] == ["a", "b"]


STRICT = (
    "--strict reads whole variables from copies, and 'emb/embeddings' trains in some of the phases: a copy would not "
    "follow. Leave --strict out"
)
MASK = (
    "Strategy 'mask' cannot hold 'emb/embeddings': phases train different elements of it, and with 'mask' an optimizer "
    "would get them all. Leave --strategy out and graphfreeze picks one that can"
)
REFUSED = {"strict": ({"strict": True}, STRICT), "mask": ({"strategy": "mask"}, MASK)}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_do_not_fit(name, tmp_path):
    options, words = REFUSED[name]
    with pytest.raises(UsageError) as caught:
        plan(tmp_path, OVERLAP, **options)
    assert str(caught.value) == words


def test_a_phase_that_trains_nothing(tmp_path):
    text = 'freeze = "**"\n[[phase]]\nname = "none"\n[[phase]]\nname = "b"\ntrain = "dense/*"\n'
    with pytest.raises(NothingToTrainError) as caught:
        plan(tmp_path, text)
    assert str(caught.value) == (
        "Phase 'none' leaves nothing to train: it freezes every trainable element of the model. Freeze less in it, or "
        "pass --allow-empty"
    )
    assert plan(tmp_path, text, allow_empty=True).meta_graphs[0].phases[0].trainable == 0


def test_different_elements_of_what_the_graph_writes(tmp_path):
    with pytest.raises(UnsupportedModelError) as caught:
        plan(tmp_path, '[[phase]]\nname = "a"\nfreeze = "table[:3]"\n[[phase]]\nname = "b"\n', model="train_keras")
    words = str(caught.value)
    assert words.startswith("Phases cannot hold different elements of 'table': function '")
    assert words.endswith(
        ", AssignSubVariableOp), and parts of their own would not follow. Hold it in every phase alike, or whole "
        "variables only"
    )


def test_what_a_tf1_graph_writes(tmp_path):
    model = "tf1_network_resource"
    found = graphfreeze.inspect(MODELS / model)
    meta = next(m for m in found.meta_graphs if any(v.writes and v.kind == "weight" for v in m.variables))
    variable = next(v for v in meta.variables if v.writes and v.kind == "weight")
    write = variable.writes[0]
    text = f'[[phase]]\nname = "a"\nfreeze = "{variable.name}"\n[[phase]]\nname = "b"\n'
    with pytest.raises(UnsupportedModelError) as caught:
        plan(tmp_path, text, model=model, tags=meta.tags)
    assert str(caught.value) == (
        f"Phases cannot hold '{variable.name}': node '{write.node}' ({write.op}) in the main graph writes it, and a "
        "TF1 graph has one such write for all phases. Hold it in every phase alike, or in none"
    )


def test_custom_gradients_that_capture(tmp_path):
    (tmp_path / "spec.toml").write_text('[[phase]]\nname = "a"\nfreeze = "kernel"\n[[phase]]\nname = "b"\n')
    with pytest.raises(
        UnsupportedModelError, match=r"^The model cannot have phases: function '.*' has a custom gradient"
    ):
        graphfreeze.rewrite(MODELS / "custom_gradient", tmp_path / "out", spec=tmp_path / "spec.toml")


def test_phases_and_add(tmp_path):
    (tmp_path / "spec.toml").write_text(OVERLAP)
    graphfreeze.rewrite(MODELS / "embedding", tmp_path / "out", spec=tmp_path / "spec.toml")
    with pytest.raises(UsageError) as caught:
        graphfreeze.plan(tmp_path / "out", freeze="dense/kernel", add=True)
    assert str(caught.value) == (
        "The model has phases, and --add extends a freeze without phases. Leave --add out and give a spec of all that "
        "is to be held; it replaces the phases"
    )
    graphfreeze.rewrite(MODELS / "embedding", tmp_path / "plain", freeze="dense/bias")
    with pytest.raises(UsageError) as caught:
        graphfreeze.plan(tmp_path / "plain", spec=tmp_path / "spec.toml", add=True)
    assert str(caught.value) == (
        "--add extends a freeze, and phases replace it: leave --add out, or the [[phase]] tables"
    )
    with pytest.raises(UsageError) as caught:
        graphfreeze.finalize(tmp_path / "out", tmp_path / "less", unfreeze="dense/bias")
    assert str(caught.value).endswith(
        "has phases, and a freeze with phases is lifted as a whole: leave --unfreeze out, or rewrite the model again "
        "with another spec"
    )
    weights = MODELS / "embedding" / "variables" / "variables"
    with pytest.raises(UnsupportedModelError) as caught:
        graphfreeze.checkpoint(weights, tmp_path / "ckpt", into=tmp_path / "out")
    assert str(caught.value) == (
        "Phases train different elements of 'emb/embeddings', in several variables, and checkpoints with slots of "
        "optimizers are not converted to such parts. Restore the checkpoint in a loaded original, save that as a "
        "SavedModel and rewrite it"
    )
