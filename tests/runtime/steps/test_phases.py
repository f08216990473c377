"""Training through the phases of a model: its own steps, and the loop, against a schedule by hand."""

import numpy as np
import pytest

import graphfreeze
from graphfreeze.errors import UsageError
from tests.conftest import MODELS
from tests.helpers.compare import assert_bits_equal, assert_within_eps

pytestmark = [pytest.mark.tf, pytest.mark.filterwarnings("ignore::UserWarning")]

SPEC = """
freeze = "emb/embeddings"
[[phase]]
name = "head"
train = "emb/embeddings[:5]"
[[phase]]
name = "rows"
train = "emb/embeddings[3:9]"
freeze = "dense/**"
[[phase]]
name = "points"
train = ["emb/embeddings[[4, 5, 6], [0, 1, 2]]", "emb/embeddings[9, 1:3]"]
loss = "mse"
"""
TABLE = "emb/embeddings"
TRAINS = {
    "head": {TABLE: [np.s_[:5]], "dense/*": [np.s_[...]]},
    "rows": {TABLE: [np.s_[3:9]]},
    "points": {TABLE: [([4, 5, 6], [0, 1, 2]), np.s_[9, 1:3]], "dense/*": [np.s_[...]]},
}
STEPS, RATE = 4, 0.05


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phases")
    (folder / "spec.toml").write_text(SPEC)
    graphfreeze.rewrite(MODELS / "embedding", folder / "held", spec=folder / "spec.toml")
    return folder


def data():
    generator = np.random.default_rng(7)
    ids = generator.integers(0, 12, (6, 4)).astype(np.int32)
    ids[:, 0] = np.arange(4, 10)
    return {"ids": ids, "targets": generator.normal(size=(6, 3)).astype(np.float32)}


def by_hand(shared):
    """The values after each phase: what a phase holds is put back after every step, its statistics too if shared."""
    import keras
    import tensorflow as tf

    loaded = tf.saved_model.load(str(MODELS / "embedding"))
    variables = {v.name.removesuffix(":0"): v for v in loaded.signatures["serving_default"].variables}
    given, found, one = data(), [], keras.optimizers.Adam(RATE)
    one.build(list(variables.values()))
    for regions in TRAINS.values():
        masks = {name: np.zeros(v.shape, np.bool_) for name, v in variables.items()}
        for name, mask in masks.items():
            for index in regions.get(name if name == TABLE else "dense/*", ()):
                mask[index] = True
        adam = one if shared else keras.optimizers.Adam(RATE)
        trained = [name for name, mask in masks.items() if mask.any()]
        if not shared:
            adam.build([variables[name] for name in trained])
        for _ in range(STEPS):
            with tf.GradientTape() as tape:
                (output,) = loaded.signatures["serving_default"](ids=tf.constant(given["ids"])).values()
                loss = tf.reduce_mean((output - given["targets"]) ** 2)
            pairs = zip(tape.gradient(loss, [variables[n] for n in trained]), trained, strict=True)
            gradients = [masked(g, masks[n]) for g, n in pairs]
            before = {n: v.numpy() for n, v in variables.items()}
            slots = [(s, s.numpy()) for s in (*adam._momentums, *adam._velocities)]
            adam.apply(gradients, [variables[n] for n in trained])
            for name, variable in variables.items():
                variable.assign(np.where(masks[name], variable, before[name]))
            names = list(variables) if shared else trained
            for i, (slot, old) in enumerate(slots):
                slot.assign(np.where(masks[names[i % len(names)]], slot, old))
        found.append({n: v.numpy() for n, v in variables.items()})
    return found


def masked(gradient, mask):
    """Keras squares what a sparse gradient says of a row several times one by one: it has to stay sparse."""
    import tensorflow as tf

    if not isinstance(gradient, tf.IndexedSlices):
        return tf.where(mask, gradient, 0.0)
    values = tf.where(tf.gather(mask, gradient.indices), gradient.values, 0.0)
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)


def assert_same(loaded, expected, before):
    for name, value in expected.items():
        actual, start = graphfreeze.value(loaded, name), before[name]
        held = np.ones(start.shape, np.bool_)
        for regions in TRAINS.values():
            for index in regions.get(name if name == TABLE else "dense/*", ()):
                held[index] = False
        assert_bits_equal(actual[held], start[held])
        assert_within_eps(actual, value, name)
    assert not np.array_equal(graphfreeze.value(loaded, TABLE), before[TABLE])


@pytest.fixture(scope="module")
def source():
    import tensorflow as tf

    loaded = tf.saved_model.load(str(MODELS / "embedding"))
    return {v.name.removesuffix(":0"): v.numpy() for v in loaded.signatures["serving_default"].variables}


@pytest.mark.parametrize("shared", [False, True])
def test_a_step_for_each_phase(model, source, shared):
    import tensorflow as tf

    out = model / f"steps-{shared}"
    done = graphfreeze.train_step(
        model / "held", out, loss="mse", optimizer=f"adam(learning_rate={RATE})", shared_state=shared
    )
    assert {"train@head", "train@rows", "train@points", "evaluate", "save", "restore"} == set(done.signatures)
    loaded, given = tf.saved_model.load(str(out)), {k: tf.constant(v) for k, v in data().items()}
    for phase, expected in zip(TRAINS, by_hand(shared), strict=True):
        last = float(loaded.signatures["evaluate"](**given)["loss"])
        for _ in range(STEPS):
            loaded.signatures[f"train@{phase}"](**given)
        assert float(loaded.signatures["evaluate"](**given)["loss"]) < last
        assert_same(loaded, expected, source)
    graphfreeze.finalize(out, model / f"plain-{shared}")


@pytest.mark.parametrize("shared", [False, True])
def test_the_loop_goes_through_phases(model, source, shared, tmp_path):
    import tensorflow as tf

    done = graphfreeze.train(
        model / "held",
        tf.data.Dataset.from_tensors(data()),
        out=tmp_path / "trained",
        phases=[(phase, STEPS) for phase in TRAINS],
        loss="mse",
        optimizer=f"adam(learning_rate={RATE})",
        shared_state=shared,
    )
    assert [e.phase for e in done.epochs] == [p for p in TRAINS for _ in range(STEPS)]
    assert_same(tf.saved_model.load(str(tmp_path / "trained")), by_hand(shared)[-1], source)


def test_phases_that_a_model_does_not_have(model):
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensors(data())
    with pytest.raises(UsageError, match=r"^The model has no phase 'haed'. It has 'head', 'rows', 'points'$"):
        graphfreeze.train(model / "held", dataset, phases=[("haed", 1)], loss="mse", out=model / "lost")
    with pytest.raises(
        UsageError,
        match=r"^The model has the phases 'head', 'rows', 'points'. Say how many epochs each is trained, for "
        r"example head:1,rows:1,points:1$",
    ):
        graphfreeze.train(model / "held", dataset, phases=2, loss="mse", out=model / "lost")
