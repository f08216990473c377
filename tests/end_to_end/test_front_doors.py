"""The public ways to load and train a result: TFSMLayer, the TF1 loader, checkpoints, several models in one process."""

import numpy as np
import pytest

import graphfreeze
from tests.conftest import MODELS
from tests.end_to_end import cases
from tests.end_to_end.processes import check_all, elsewhere

pytestmark = pytest.mark.tf

HEAD = "variables/5[:, :7]"
TRUNK = ["variables/0", "variables/1", "variables/2", "variables/3"]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("strategy", ["auto", "mask"])
def test_a_layer_of_a_functional_model_trains(optimizer, strategy, tmp_path):
    import keras

    from tests.end_to_end.runs import assert_nothing_moved

    original, out = MODELS / "digits", tmp_path / "out"
    plan = graphfreeze.rewrite(original, out, freeze=[*TRUNK, HEAD], strategy=strategy)
    layer = keras.layers.TFSMLayer(str(out), call_endpoint="serve", call_training_endpoint="train")
    image = keras.Input((8, 8, 1))
    model = keras.Model(image, keras.layers.Dense(2, name="extra")(layer(image)))
    held = layer._reloaded_obj
    names = [v.name for v in graphfreeze.trainable_variables(held)]
    assert len(layer.trainable_weights) == len(names) == 2
    # Under mask the kernel of the head trains in full shape, 64 x 10; the bias and the extra layer train anyway.
    elements = sum(int(np.prod(w.shape)) for w in layer.trainable_weights)
    assert elements == 10 + (64 * 3 if strategy == "auto" else 64 * 10)
    if strategy == "auto":
        weights = [v for v in plan.meta_graphs[0].variables if v.kind == "weight"]
        assert elements == sum(v.elements - v.frozen for v in weights)
    before = [w.numpy() for w in layer.trainable_weights]
    made = keras.optimizers.SGD(1e-3) if optimizer == "sgd" else keras.optimizers.Adam(0.05, weight_decay=0.1)
    made.build(model.trainable_variables)
    model.compile(made, "mse")
    generator = np.random.default_rng(0)
    images, targets = generator.uniform(0, 1, (32, 8, 8, 1)), generator.standard_normal((32, 2))
    history = model.fit(images, targets, epochs=3, batch_size=8, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    assert_nothing_moved(original, held, plan)
    assert all((w.numpy() != b).any() for w, b in zip(layer.trainable_weights, before, strict=True))


SESSION = {
    "split": {"fixture": "mlp", "kind": "columns", "strategy": "split", "choice": "all"},
    "mask": {"fixture": "tied", "kind": "dense mask", "strategy": "mask", "choice": "all"},
    "strict": {"fixture": "keras_conv", "kind": "strict", "strategy": "auto", "choice": "even"},
    "strings": {"fixture": "strings", "kind": "row list", "strategy": "split", "choice": "all"},
    "loop": {"fixture": "loop", "kind": "rows", "strategy": "split", "choice": "all"},
    "lookups": {"fixture": "gathers", "kind": "points", "strategy": "mask", "choice": "all"},
}


@pytest.fixture(scope="module")
def sessions(tmp_path_factory):
    """Through the TF1 loader: original and rewritten in one graph, and a poisoned result that was saved again."""
    import tensorflow as tf

    from tests.end_to_end.runs import load
    from tests.helpers.promises import parts_of, poison

    root = tmp_path_factory.mktemp("sessions")
    jobs = []
    for name, case in SESSION.items():
        plan = cases.rewrite(case, root / name / "out")
        held = load(root / name / "out")
        generator = np.random.default_rng(0)
        for parts in parts_of(held, plan):
            poison(parts, generator)
        tf.saved_model.save(held, str(root / name / "again"), signatures=dict(held.signatures))
        graphfreeze.finalize(root / name / "again", root / name / "plain")
        together = {"original": str(MODELS / case["fixture"]), "out": str(root / name / "out")}
        graphs = (together, *({part: str(root / name / part)} for part in ("again", "plain")))
        jobs += [{"models": models, "folder": str(root / name)} for models in graphs]
    answers = iter(elsewhere("session", jobs, root))
    return {name: (root / name, [next(answers) for _ in range(3)]) for name in SESSION}


def test_the_tf1_loader_restores_new_variables_and_returns_equal_outputs(sessions):
    check_all(SESSION, lambda name: check_session(name, *sessions[name]))


def check_session(name, folder, answers):
    from tests.helpers.compare import assert_bits_equal

    for answer in answers:
        assert "error" not in answer, answer["error"]
        assert not set(answer["uninitialized"]) & set(answer["new"])
    # Keras's unused copies of variables are restored by no TF1 loader, in the original neither.
    together = [name.partition("/") for name in answers[0]["uninitialized"]]
    assert [n for part, _, n in together if part == "out"] == [n for part, _, n in together if part == "original"]
    assert [bool(answer["new"]) for answer in answers] == [True, True, False]
    parts = ("original", "out", "again", "plain")
    original, out, again, plain = (np.load(folder / f"{part}.npz", allow_pickle=True) for part in parts)
    assert sorted(original) == sorted(out) == sorted(again)
    for key in original:
        assert_bits_equal(out[key], original[key], key)
        assert_bits_equal(again[key], plain[key], f"poisoned, {key}")
    floats = [key for key in original if original[key].dtype.kind == "f"]
    # Under strict nothing of the frozen variables trains: the poison is NaN in what nothing may read.
    changed = any((again[key] != original[key]).any() for key in floats)
    assert changed == (name != "strict"), "the poison changed nothing: a vacuous test"
    assert all(np.isfinite(again[key]).all() for key in floats)


@pytest.mark.parametrize("name", ["mlp", "tied", "keras_gru"])
def test_original_and_results_live_in_one_process(name, tmp_path):
    """Function names of one must not shadow those of another, whoever is loaded and traced first."""
    from tests.end_to_end.runs import load, train_held
    from tests.helpers.compare import assert_all_bits_equal
    from tests.helpers.functions import outputs_of
    from tests.helpers.models import FIXTURES
    from tests.helpers.optimizers import OPTIMIZERS
    from tests.helpers.promises import assert_same_outputs

    case = {"fixture": name, "kind": "rows", "strategy": "auto", "choice": "even"}
    cases.rewrite(case, tmp_path / "rows" / "out")
    cases.rewrite({**case, "kind": "columns"}, tmp_path / "columns" / "out")
    plain = load(MODELS / name)
    several = [load(tmp_path / "rows" / "out"), load(tmp_path / "columns" / "out"), load(tmp_path / "rows" / "out")]
    before = outputs_of(plain)
    for held in several:
        assert_same_outputs(outputs_of(held), before)
    training = FIXTURES[name].training()
    for held in several:
        train_held(tmp_path, training, OPTIMIZERS["adam"](), 2, held=held)
    assert_same_outputs(outputs_of(plain), before)
    one, other = outputs_of(several[0]), outputs_of(several[2])
    assert_all_bits_equal(one, other)
    assert not np.array_equal(
        graphfreeze.value(several[0], first_of(name)), graphfreeze.value(several[1], first_of(name))
    )


def first_of(name):
    return cases.frozen_in(name, "rows", "even")[0].path


def test_a_training_checkpoint_of_the_original_restores_into_stop(tmp_path):
    """Existing keys never change, so weights and slots of a running training fit."""
    import tensorflow as tf

    from tests.end_to_end.runs import load
    from tests.helpers.compare import assert_bits_equal
    from tests.helpers.functions import outputs_of
    from tests.helpers.models import FIXTURES
    from tests.helpers.optimizers import OPTIMIZERS
    from tests.helpers.promises import assert_same_outputs
    from tests.helpers.training import train
    from tests.helpers.variables import trainable_of, variables_by_path

    training, plain = FIXTURES["nested"].training(), load(MODELS / "nested")
    train(training, plain, list(trainable_of(plain).values()), OPTIMIZERS["adam"](), steps=3)
    path = tf.train.Checkpoint(model=plain).save(str(tmp_path / "checkpoint"))
    graphfreeze.rewrite(MODELS / "nested", tmp_path / "out", freeze=["kernel", "below/below/**"])
    held = load(tmp_path / "out")
    status = tf.train.Checkpoint(model=held).restore(path)
    status.assert_existing_objects_matched()
    for key, variable in variables_by_path(plain).items():
        assert_bits_equal(graphfreeze.value(held, key), variable.numpy(), key)
    assert_same_outputs(outputs_of(held), outputs_of(plain))
