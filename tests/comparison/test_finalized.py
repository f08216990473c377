"""rewrite, perhaps train, finalize: what ``diff`` says then."""

import pytest

import graphfreeze
from tests.conftest import MODELS
from tests.end_to_end.cases import FULL, weights_of
from tests.helpers.expected import pinned, selectors
from tests.helpers.shared_models import require_shared_models, shared_model, shared_model_names

FIXTURES = sorted(n for n, found in pinned()["fixtures"].items() if {"whole", "slice"} & found.keys())
CASES = [("fixtures", name) for name in FIXTURES]
CASES += [
    ("shared", name)
    for name in shared_model_names()
    if any(pinned()["shared"].get(name, {}).get(case, {}).get("exit") == 0 for case in ("whole", "slice"))
]


def source(kind, name):
    return MODELS / name if kind == "fixtures" else shared_model(name)


def chosen(path, kind):
    return selectors(graphfreeze.inspect(path), kind)


def test_there_are_real_models():
    require_shared_models()
    assert len([c for c in CASES if c[0] == "shared"]) >= 11


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_untrained_it_is_the_original(kind, name, tmp_path):
    original = source(kind, name)
    for case in ("whole", "slice") if FULL else (("whole", "slice")[sum(name.encode()) % 2],):
        rules = chosen(original, case) if pinned()[kind][name].get(case, {}).get("exit") == 0 else []
        if not rules:
            continue
        graphfreeze.rewrite(original, tmp_path / case, freeze=rules, allow_empty=True)
        graphfreeze.finalize(tmp_path / case, tmp_path / f"{case} plain")
        found = graphfreeze.diff(original, tmp_path / f"{case} plain")
        assert found.equal, (found.changes[:3], found.values[:3])
        held = graphfreeze.diff(original, tmp_path / case)
        assert not held.equal
        if all(v.key is None for m in graphfreeze.inspect(original).meta_graphs for v in m.variables):
            assert "not both models hold a whole value" in held.warnings[0]  # it ships without values
            continue
        assert held.frozen is not None
        assert held.frozen.elements > 0
        assert held.frozen.changed == 0


def rewritten_and_trained(original, rules, folder):
    """The rewritten model, and what it is after training and saving again; values that the original would have."""
    import tensorflow as tf

    from tests.end_to_end.test_finalize import effective_values
    from tests.helpers.resaved import save, train_a_little

    plan = graphfreeze.rewrite(original, folder / "out", freeze=rules, allow_empty=True)
    loaded = tf.saved_model.load(str(folder / "out"))
    train_a_little(loaded)
    return save(loaded, folder / "trained", signatures=True), effective_values(loaded, plan)


@pytest.mark.tf
@pytest.mark.parametrize("name", ["mlp", "gathers", "keras_gru", "digits"] if FULL else ["mlp", "digits"])
def test_trained_only_values_differ(name, tmp_path):
    """From what ``tf.saved_model.save(tf.saved_model.load(ORIGINAL))`` writes; none does with the same values."""
    from tests.helpers.resaved import assign_all, save_again

    original = MODELS / name
    trained, values = rewritten_and_trained(original, chosen(original, "slice"), tmp_path)
    graphfreeze.finalize(trained, tmp_path / "plain")
    resaved = save_again(original, tmp_path / "resaved", signatures=True)
    found = graphfreeze.diff(resaved, tmp_path / "plain")
    assert found.changes == ()
    assert found.values
    assert all(v.largest > 0 for v in found.values)
    oracle = save_again(original, tmp_path / "oracle", signatures=True, change=assign_all(values))
    assert graphfreeze.diff(oracle, tmp_path / "plain").equal


@pytest.mark.tf
def test_two_states_of_one_freeze(tmp_path):
    import tensorflow as tf

    from tests.helpers.resaved import save

    rules = ["emb/embeddings[:5]", "dense/kernel[:, :1]"]
    trained, _ = rewritten_and_trained(MODELS / "embedding", rules, tmp_path)
    found = graphfreeze.diff(tmp_path / "out", trained)
    weights = {v.name: v for v in weights_of("embedding")}
    elements = 5 * weights["emb/embeddings"].shape[1] + weights["dense/kernel"].shape[0]
    assert (found.frozen.elements, found.frozen.changed) == (elements, 0)
    assert {v.name for v in found.values} >= {"emb/embeddings/graphfreeze/trainable"}

    loaded = tf.saved_model.load(str(tmp_path / "out"))
    moved = loaded.embeddings.numpy()
    before = float(moved[2, 0])
    moved[2, 0] += 0.25
    distance = abs(float(moved[2, 0]) - before)
    loaded.embeddings.assign(moved)
    found = graphfreeze.diff(tmp_path / "out", save(loaded, tmp_path / "moved", signatures=True))
    assert found.frozen.changed == 1
    assert [(v.name, v.changed, v.largest) for v in found.frozen.variables] == [("emb/embeddings", 1, distance)]

    graphfreeze.rewrite(MODELS / "embedding", tmp_path / "less", freeze=["emb/embeddings[:4]"])
    found = graphfreeze.diff(tmp_path / "out", tmp_path / "less")
    assert found.frozen is None
    assert found.warnings == (
        "the two models freeze different elements (of 'emb/embeddings', 'dense/kernel'), so these are not compared",
    )


@pytest.mark.tf
def test_a_trained_model_beside_its_original(tmp_path):
    trained, _ = rewritten_and_trained(MODELS / "mlp", ["out/kernel[:2]"], tmp_path)
    found = graphfreeze.diff(MODELS / "mlp", trained)
    assert found.frozen.changed == 0
    assert found.frozen.elements > 0
