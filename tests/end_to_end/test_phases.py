"""Phases, against the original model and schedules written by hand in plain TensorFlow."""

import json
import os

import numpy as np
import pytest

import graphfreeze
from tests.conftest import MODELS
from tests.helpers.compare import assert_bits_equal, assert_within_eps

pytestmark = pytest.mark.tf

ROWS = """
freeze = "{table}"
[[phase]]
name = "head"
train = "{table}[:5]"
freeze = "{other}"
[[phase]]
name = "rows"
train = "{table}[3:9]"
[[phase]]
name = "points"
train = ["{table}[[4, 5, 6], [0, 1, 2]]", "{table}[9, 1:3]"]
"""
SQUARE = """
[[phase]]
name = "a"
freeze = ["{0}[:2]", "{1}"]
[[phase]]
name = "b"
freeze = "{0}[1:3]"
[[phase]]
name = "c"
freeze = ["{0}[:, [0, 2]]", "{0}[0, 1]"]
"""
FULL = os.environ.get("GRAPHFREEZE_FULL") == "1"
SPECS = {
    "embedding": ROWS.format(table="emb/embeddings", other="dense/**"),
    "tied": ROWS.format(table="table", other="projection"),
    "loop": SQUARE.format("kernel", "bias"),
    "cond_in_loop": SQUARE.format("kernel", "outer"),
    "shared_function": SQUARE.format("a/kernel", "b/kernel"),
    "case": SQUARE.format("left", "right"),
}
"""Overlapping rows, scattered elements and whole variables, in lookups, loops, branches and shared functions."""


def rewritten(model, folder, spec):
    (folder / "spec.toml").write_text(spec)
    return graphfreeze.rewrite(model, folder / "out", spec=folder / "spec.toml")


def variants(loaded, function):
    """Every concrete function of a name: outside of phases, then in each."""
    found = {"": getattr(loaded, function, loaded)}
    for phase in [p["name"] for p in info(loaded)["phases"]]:
        holder = getattr(loaded.graphfreeze.phases, phase)
        found[phase] = getattr(holder, function, holder)
    return found


def info(loaded):
    return json.loads(loaded.graphfreeze.info().numpy())


def arguments(function):
    """Something for every argument of a restored function."""
    import tensorflow as tf

    generator = np.random.default_rng(3)
    concrete = function.concrete_functions[0]
    given = []
    for spec in concrete.structured_input_signature[0]:
        shape = [4 if size is None else size for size in spec.shape]
        if spec.dtype.is_integer:
            given.append(tf.constant(generator.integers(0, 8 if shape else 2, shape), spec.dtype))
        else:
            given.append(tf.constant(generator.normal(size=shape), spec.dtype))
    return given


def first_output(result):
    import tensorflow as tf

    return tf.nest.flatten(result)[0]


def parts_of(plan, loaded):
    """(plan of the variable, base, {atom: variable}) of every variable that phases cut."""
    by_name = {v.name.removesuffix(":0"): v for v in getattr(loaded.graphfreeze, "variables", ())}
    for variable in plan.meta_graphs[0].variables:
        if variable.strategy == "split":
            yield variable, {atom: by_name[atom.name] for atom in variable.atoms if atom.name}


def assert_forward(plan, plain, held, names, poison):
    """G1 for every function and variant; with ``poison`` at new values, and NaN in all that nothing may read."""
    from tests.helpers.variables import variables_by_path

    generator = np.random.default_rng(5)
    sources = variables_by_path(plain)
    bases = variables_by_path(held)
    for variable, parts in parts_of(plan, held) if poison else ():
        value, base = sources[variable.path].numpy(), bases[variable.path].numpy()
        for atom, part in parts.items():
            fresh = generator.normal(size=part.shape).astype(base.dtype)
            part.assign(fresh)
            value = atom.region.put(value, fresh)
            base = atom.region.put(base, np.full(fresh.shape, np.nan, base.dtype))
        sources[variable.path].assign(value)
        bases[variable.path].assign(base)
    for name in names:
        expected = getattr(plain, name) if name != "__call__" else plain
        given = arguments(plain.__call__ if name == "__call__" else expected)
        for phase, variant in variants(held, name).items():
            assert_bits_equal(first_output(variant(*given)), first_output(expected(*given)), f"{name} {phase}")
    for key in plain.signatures:
        for phase in [p.name for p in plan.meta_graphs[0].phases]:
            given = {k: arguments_of(spec) for k, spec in plain.signatures[key].structured_input_signature[1].items()}
            expected, found = plain.signatures[key](**given), held.signatures[f"{key}@{phase}"](**given)
            assert expected.keys() == found.keys()
            for output, value in expected.items():
                assert_bits_equal(found[output], value, f"{key}@{phase}")


def arguments_of(spec):
    import tensorflow as tf

    shape = [4 if size is None else size for size in spec.shape]
    if spec.dtype.is_integer:
        return tf.ones(shape, spec.dtype)
    return tf.constant(np.random.default_rng(1).normal(size=shape), spec.dtype)


FUNCTIONS = {"cond_in_loop": ["once"]}


@pytest.mark.parametrize("name", SPECS if FULL else ["embedding", "cond_in_loop"])
def test_same_forward_and_gradients(name, tmp_path):
    """G1 and G2 for every variant: no path to what a phase holds, the original's bits elsewhere, sparse as before."""
    import tensorflow as tf

    plan = rewritten(MODELS / name, tmp_path, SPECS[name])
    names = FUNCTIONS.get(name, ["__call__"])
    function = names[0]
    phases = plan.meta_graphs[0].phases
    for phase in phases if FULL else phases[1:]:
        plain, held = tf.saved_model.load(str(MODELS / name)), tf.saved_model.load(str(tmp_path / "out"))
        source = plain.once if function == "once" else plain
        given = arguments(plain.once if function == "once" else plain.__call__)
        variant = variants(held, function)[phase.name]
        trains = held.graphfreeze.phases
        listed = getattr(trains, phase.name).info.concrete_functions[0].trainable_variables
        assert [v.name.removesuffix(":0") for v in listed] == list(phase.variables)
        assert [v.ref() for v in graphfreeze.trainable_variables(held, phase=phase.name)] == [v.ref() for v in listed]
        by_name = {v.name: v for v in plain.trainable_variables} if hasattr(plain, "trainable_variables") else {}
        by_name = by_name or {v.name: v for v in source_variables(plain)}
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(first_output(source(*given)) ** 2)
        expected = dict(zip(by_name, tape.gradient(loss, list(by_name.values())), strict=True))
        everything = {v.name: v for v in source_variables(held)}
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(first_output(variant(*given)) ** 2)
        found = dict(zip(everything, tape.gradient(loss, list(everything.values())), strict=True))
        training = {v.name for v in listed}
        for variable, gradient in found.items():
            if variable not in training:
                assert gradient is None, (phase.name, variable)
        for variable in plan.meta_graphs[0].variables:
            wanted = expected.get(f"{variable.name}:0")
            inside = variable.in_phase(phase.name)
            atoms = [a for a in inside.atoms if a.name and a.trainable]
            if not atoms and f"{variable.name}:0" in training:
                same(found[f"{variable.name}:0"], wanted, lambda g: g, variable.name)
            for atom in atoms:
                same(found[f"{atom.name}:0"], wanted, atom.region.take, f"{phase.name} {atom.name}")
                assert found[f"{atom.name}:0"] is not None
                if isinstance(wanted, tf.IndexedSlices):
                    assert isinstance(found[f"{atom.name}:0"], tf.IndexedSlices)
    plain, held = tf.saved_model.load(str(MODELS / name)), tf.saved_model.load(str(tmp_path / "out"))
    assert_forward(plan, plain, held, names, poison=False)
    assert_forward(plan, plain, held, names, poison=True)


def source_variables(loaded):
    """All variables of a model that the tape follows, once each."""
    from tests.helpers.variables import variables_by_path

    return list({id(v): v for v in variables_by_path(loaded).values() if v.trainable}.values())


def same(found, wanted, take, what):
    import tensorflow as tf

    if wanted is None:
        assert found is None, what
        return
    expected = take(np.asarray(tf.convert_to_tensor(wanted)))
    # A variable that is read several times has its gradients added in another order.
    assert_within_eps(np.asarray(tf.convert_to_tensor(found)), expected, what)


SCHEDULE = """
train = ["**/head/kernel", "**/head/bias"]
[[phase]]
name = "head"
[[phase]]
name = "few"
train = "**/words/embeddings[:10]"
freeze = "**/head/bias"
[[phase]]
name = "more"
train = "**/words/embeddings[5:100]"
"""
TRAINED = {
    "head": {"head/kernel": slice(None), "head/bias": slice(None)},
    "few": {"words/embeddings": slice(0, 10), "head/kernel": slice(None)},
    "more": {"words/embeddings": slice(5, 100), "head/kernel": slice(None), "head/bias": slice(None)},
}
IDS = np.random.default_rng(0).integers(0, 120, (16, 6)).astype(np.int32)
LABELS = np.random.default_rng(1).integers(0, 3, 16)
OPTIMIZERS = {
    "momentum": lambda keras: keras.optimizers.SGD(0.1, momentum=0.9),
    "adamw": lambda keras: keras.optimizers.AdamW(0.05, weight_decay=0.1),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    import keras

    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((6,), dtype="int32"),
        keras.layers.Embedding(120, 4, name="words"),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(3, name="head"),
    ]
    model = keras.Sequential(layers, name="sequential")
    path = tmp_path_factory.mktemp("keras") / "model"
    model.export(str(path), verbose=False)
    return path


def logits_of(values, tf):
    pooled = tf.reduce_mean(tf.gather(values["words/embeddings"], IDS), axis=1)
    return tf.matmul(pooled, values["head/kernel"]) + values["head/bias"]


def loss_of(logits, tf):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=LABELS, logits=logits))


def by_hand(start, make, *, shared):
    """The schedule in plain TensorFlow, rows that train as variables of their own; values after every phase."""
    import keras
    import tensorflow as tf

    pieces = {
        "words/embeddings": [slice(0, 5), slice(5, 10), slice(10, 100)],
        "head/kernel": [slice(None)],
        "head/bias": [slice(None)],
    }
    variables = {(n, i): tf.Variable(start[n][s]) for n, slices in pieces.items() for i, s in enumerate(slices)}
    rest = tf.constant(start["words/embeddings"][100:])
    common = make(keras)
    if shared:
        common.build(list(variables.values()))
    found = []
    for phase, regions in TRAINED.items():
        optimizer = common if shared else make(keras)
        trained = [
            v for (n, i), v in variables.items() if n in regions and covers(regions[n], pieces[n][i], start[n].shape[0])
        ]
        for _ in range(8):
            with tf.GradientTape() as tape:
                table = tf.concat([*(variables["words/embeddings", i] for i in range(3)), rest], axis=0)
                values = {n: variables[n, 0] for n in ("head/kernel", "head/bias")} | {"words/embeddings": table}
                loss = loss_of(logits_of(values, tf), tf)
            # Keras's optimizers leave the averages of rows alone that a sparse gradient lacks: dense on both sides.
            gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, trained)]
            optimizer.apply_gradients(zip(gradients, trained, strict=True))
        whole = np.concatenate([*(variables["words/embeddings", i].numpy() for i in range(3)), rest.numpy()])
        found.append({"words/embeddings": whole} | {n: variables[n, 0].numpy() for n in ("head/kernel", "head/bias")})
        assert phase in TRAINED
    return found


def covers(region, piece, size):
    return set(range(size)[piece]) <= set(range(size)[region])


def values_of(loaded):
    return {n: graphfreeze.value(loaded, f"sequential/{n}") for n in ("words/embeddings", "head/kernel", "head/bias")}


@pytest.mark.parametrize(("optimizer", "shared"), [("momentum", False), ("adamw", True), ("adamw", False)])
def test_gradual_unfreezing_follows_a_schedule_by_hand(exported, optimizer, shared, tmp_path):
    """G3 to the bit in every phase, G4 within rounding after every phase, then G5."""
    import keras
    import tensorflow as tf

    plan = rewritten(exported, tmp_path, SCHEDULE)
    atoms = {v.name: v.atoms for v in plan.meta_graphs[0].variables}["sequential/words/embeddings"]
    assert sorted(a.region.storage_shape for a in atoms if a.name) == [(5, 4), (5, 4), (90, 4)]
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    make = OPTIMIZERS[optimizer]
    start = values_of(loaded)
    expected = by_hand(start, make, shared=shared)
    common = make(keras)
    everything = {v.ref(): v for p in TRAINED for v in graphfreeze.trainable_variables(loaded, phase=p)}
    if shared:
        common.build([v.deref() for v in everything])
    for number, (phase, regions) in enumerate(TRAINED.items()):
        before = values_of(loaded)
        variables = graphfreeze.trainable_variables(loaded, phase=phase)
        run = getattr(loaded.graphfreeze.phases, phase).serve
        used = common if shared else make(keras)
        for _ in range(8):
            with tf.GradientTape() as tape:
                loss = loss_of(run(IDS), tf)
            gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]
            used.apply_gradients(zip(gradients, variables, strict=True))
        after = values_of(loaded)
        for name, value in after.items():
            mask = np.ones(value.shape, np.bool_)
            if name in regions:
                mask[regions[name]] = False
            assert_bits_equal(value[mask], before[name][mask], f"{phase} {name}")
            assert_within_eps(value, expected[number][name], f"{phase} {name}")
            if name in regions:
                assert (value != before[name]).any(), (phase, name)
    assert_finalized(exported, loaded, after, tmp_path)


def assert_finalized(source, loaded, values, folder):
    """What was trained and saved again becomes the original, saved again, with these values."""
    import tensorflow as tf

    from tests.helpers.variables import variables_by_path

    tf.saved_model.save(loaded, str(folder / "trained"), signatures=loaded.signatures)
    graphfreeze.finalize(folder / "trained", folder / "plain")
    plain = tf.saved_model.load(str(source))
    for path, variable in variables_by_path(plain).items():
        name = variable.name.removesuffix(":0").removeprefix("sequential/")
        if name in values and not path.startswith("_all"):
            variable.assign(values[name])
    tf.saved_model.save(plain, str(folder / "expected"), signatures=plain.signatures)
    found = graphfreeze.diff(folder / "expected", folder / "plain")
    assert found.equal, found.to_dict()["changes"][:5]
    # Untrained, the original's bytes.
    graphfreeze.finalize(folder / "out", folder / "back")
    assert graphfreeze.diff(source, folder / "back").equal


@pytest.mark.parametrize("name", SPECS if FULL else ["case"])
def test_finalize_takes_phases_off(name, tmp_path):
    import tensorflow as tf

    rewritten(MODELS / name, tmp_path, SPECS[name])
    graphfreeze.finalize(tmp_path / "out", tmp_path / "plain")
    assert graphfreeze.diff(MODELS / name, tmp_path / "plain").equal
    for source, target in ((MODELS / name, "expected"), (tmp_path / "out", "again")):
        loaded = tf.saved_model.load(str(source))
        tf.saved_model.save(loaded, str(tmp_path / target), signatures=loaded.signatures)
    found = graphfreeze.phases(tmp_path / "again").to_dict()["meta_graphs"]
    assert found == graphfreeze.phases(tmp_path / "out").to_dict()["meta_graphs"]
    graphfreeze.finalize(tmp_path / "again", tmp_path / "back")
    assert graphfreeze.diff(tmp_path / "expected", tmp_path / "back").equal


def test_another_rewrite_replaces_phases(tmp_path):
    """As if the model had been finalized before."""
    rewritten(MODELS / "embedding", tmp_path, SPECS["embedding"])
    graphfreeze.rewrite(tmp_path / "out", tmp_path / "again", freeze="dense/*")
    graphfreeze.rewrite(MODELS / "embedding", tmp_path / "expected", freeze="dense/*")
    found = graphfreeze.diff(tmp_path / "expected", tmp_path / "again")
    # Only the digest of what was rewritten differs.
    assert {(c.subject, c.what) for c in found.changes} == {("function", "changed"), ("node", "changed")}
    assert all("info" in c.name for c in found.changes)


TRAIN_STEPS = """
[[phase]]
name = "upper"
freeze = "{0}"
[[phase]]
name = "all"
"""


def test_steps_inside_the_model_keep_to_their_phase(tmp_path):
    """A function that writes variables leaves those alone that its phase holds whole."""
    import tensorflow as tf

    source = MODELS / "train_keras"
    names = [v.name for v in graphfreeze.inspect(source).meta_graphs[0].variables if v.kind == "weight" and v.writes]
    rewritten(source, tmp_path, TRAIN_STEPS.format(names[0]))
    for phase, moves in (("upper", False), ("all", True)):
        loaded, plain = tf.saved_model.load(str(tmp_path / "out")), tf.saved_model.load(str(source))
        step = next(n for n in ("train", "train_step", "step") if hasattr(plain, n))
        given = arguments(getattr(plain, step))
        before = graphfreeze.value(loaded, names[0])
        getattr(getattr(loaded.graphfreeze.phases, phase), step)(*given)
        assert (graphfreeze.value(loaded, names[0]) != before).any() == moves, phase
    graphfreeze.finalize(tmp_path / "out", tmp_path / "plain")
    assert graphfreeze.diff(source, tmp_path / "plain").equal
