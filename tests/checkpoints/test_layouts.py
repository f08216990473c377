"""Ways to save a checkpoint, what its tensors are after a conversion, and what is refused."""

import re

import numpy as np
import pytest

import graphfreeze
from graphfreeze.errors import InputOutputError, NoMatchError, UnsupportedModelError, UsageError
from graphfreeze.savedmodel import OBJECT_GRAPH_KEY, read_bundle
from tests.checkpoints.elements import FROZEN_KERNEL, FROZEN_TABLE

pytestmark = pytest.mark.tf

RULE = "mixed"
"""The table is split, the kernel masked, the bias whole."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    from tests.checkpoints.small import RULES, save_model

    folder = tmp_path_factory.mktemp("models")
    save_model(folder / "source")
    for name in (RULE, "split", "live"):
        graphfreeze.rewrite(folder / "source", folder / name, **RULES[name])
    return folder


def load(path):
    import tensorflow as tf

    return tf.saved_model.load(str(path))


def variables_of(model):
    return [model.table, model.kernel, model.bias, model.scale]


def trained(models, make, variables=variables_of, steps=3):
    from tests.checkpoints.small import apply_with, train

    model, optimizer = load(models / "source"), make()
    train(model, variables(model), apply_with(optimizer), range(steps))
    return model, optimizer


def adam():
    import keras

    return keras.optimizers.Adam(0.01)


def read(prefix):
    bundle = read_bundle(prefix)
    return {key: bundle.read_tensor(key) for key in bundle.entries if key != OBJECT_GRAPH_KEY}


def save(prefix, **objects):
    import tensorflow as tf

    tf.train.Checkpoint(**objects).write(str(prefix))
    return prefix


def test_what_is_not_converted_stays_byte_for_byte(models, tmp_path):
    model, optimizer = trained(models, adam)
    old = save(tmp_path / "old", model=model, optimizer=optimizer)
    done = graphfreeze.checkpoint(old, tmp_path / "new", into=models / "split")
    before, after = read_bundle(old), read_bundle(tmp_path / "new")
    same = [k for k in before.entries.keys() & after.entries.keys() if before.read_bytes(k) == after.read_bytes(k)]
    assert {k for k in same if k.startswith("model/")} == {
        f"model/{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in ("table", "kernel", "bias", "scale", "held")
    }
    assert all(before.entries[k].crc32c == after.entries[k].crc32c for k in same)
    assert done.unchanged >= 7
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("new")) == [
        "new.data-00000-of-00001",
        "new.index",
    ]
    # Nothing is left in the shard of what was cut out.
    entries = [e for k, e in after.entries.items()]
    assert after.shard_path(0).stat().st_size == sum(e.size for e in entries)


def test_slots_there_and_back(models, tmp_path):
    model, optimizer = trained(models, adam)
    old = save(tmp_path / "old", model=model, optimizer=optimizer)
    graphfreeze.checkpoint(old, tmp_path / "new", into=models / RULE)
    graphfreeze.checkpoint(tmp_path / "new", tmp_path / "back", from_=models / RULE)
    again, fresh = load(models / "source"), adam()
    fresh.build(variables_of(again))
    import tensorflow as tf

    tf.train.Checkpoint(model=again, optimizer=fresh).read(str(tmp_path / "back")).assert_consumed()
    for name in ("_momentums", "_velocities"):
        table, kernel, bias, scale = (v.numpy() for v in getattr(optimizer, name))
        found = [v.numpy() for v in getattr(fresh, name)]
        assert np.array_equal(found[0], np.where(FROZEN_TABLE, np.float32(0), table))
        assert np.array_equal(found[1], np.where(FROZEN_KERNEL, np.float32(0), kernel))
        assert np.array_equal(found[2], np.zeros_like(bias))
        assert np.array_equal(found[3], scale)
        assert np.abs(table[:5]).max() > 0
    assert int(fresh.iterations.numpy()) == 3


@pytest.mark.parametrize(("name", "list_name", "start"), [("Adagrad", "_accumulators", 0.1), ("ema", "average", None)])
def test_what_a_slot_starts_at_where_elements_were_frozen(models, tmp_path, name, list_name, start):
    import keras
    import tensorflow as tf

    def make():
        if name == "ema":
            return keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
        return keras.optimizers.Adagrad(0.1)

    model, optimizer = trained(models, make)
    old = save(tmp_path / "old", model=model, optimizer=optimizer)
    graphfreeze.checkpoint(old, tmp_path / "new", into=models / RULE)
    graphfreeze.checkpoint(tmp_path / "new", tmp_path / "back", from_=models / RULE)
    again, fresh = load(models / "source"), make()
    fresh.build(variables_of(again))
    tf.train.Checkpoint(model=again, optimizer=fresh).read(str(tmp_path / "back")).assert_consumed()
    attribute = "_model_variables_moving_average" if name == "ema" else list_name
    table, bias = (getattr(fresh, attribute)[i].numpy() for i in (0, 2))
    expected = [model.table.numpy(), model.bias.numpy()] if start is None else [np.float32(start)] * 2
    assert np.array_equal(table[:5], np.broadcast_to(expected[0], (8, 4))[:5])
    assert np.array_equal(bias, np.broadcast_to(expected[1], (3,)))
    assert np.array_equal(table[5:], getattr(optimizer, attribute)[0].numpy()[5:])


@pytest.mark.parametrize("layout", ["the model is the root", "deep inside", "optimizer only", "without optimizer"])
def test_where_the_model_stands(models, tmp_path, layout):
    import tensorflow as tf

    from tests.checkpoints.small import effective, values

    def checkpoint(model, optimizer):
        if layout == "the model is the root":
            return tf.train.Checkpoint(model)
        if layout == "deep inside":
            inner = tf.train.Checkpoint(net=model, step=tf.Variable(1))
            return tf.train.Checkpoint(student=inner, opts=[optimizer])
        if layout == "optimizer only":
            return tf.train.Checkpoint(optimizer=optimizer)
        return tf.train.Checkpoint(model=model)

    model, optimizer = trained(models, adam)
    checkpoint(model, optimizer).write(str(tmp_path / "old"))
    done = graphfreeze.checkpoint(tmp_path / "old", tmp_path / "new", into=models / RULE)
    rewritten, fresh = load(models / RULE), adam()
    fresh.build(graphfreeze.trainable_variables(rewritten))
    checkpoint(rewritten, fresh).read(str(tmp_path / "new")).assert_consumed()
    reached, found = values(model), effective(rewritten)
    if layout == "optimizer only":
        # It holds no frozen elements, so these are the rewritten model's.
        source = values(load(models / "source"))
        reached["table"][:5], reached["bias"] = source["table"][:5], source["bias"]
        reached["kernel"] = np.where(FROZEN_KERNEL, source["kernel"], reached["kernel"])
        assert "the result holds the rewritten model's" in done.warnings[0]
    for name, value in found.items():
        assert np.array_equal(value, reached[name]), name
    checkpoint(rewritten, fresh).write(str(tmp_path / "trained"))
    graphfreeze.checkpoint(tmp_path / "trained", tmp_path / "back", from_=models / RULE)
    original, third = load(models / "source"), adam()
    third.build(variables_of(original))
    checkpoint(original, third).read(str(tmp_path / "back")).assert_consumed()
    for name, value in values(original).items():
        assert np.array_equal(value, found[name]), name


def test_optimizer_only_of_the_parts_alone(models, tmp_path):
    """An optimizer holds the values of parts; bases and copies come from the rewritten model."""
    import tensorflow as tf

    rewritten, optimizer = load(models / RULE), adam()
    optimizer.build(graphfreeze.trainable_variables(rewritten))
    tf.train.Checkpoint(optimizer=optimizer).write(str(tmp_path / "trained"))
    graphfreeze.checkpoint(tmp_path / "trained", tmp_path / "back", from_=models / RULE)
    values = read(tmp_path / "back")
    assert sorted(v.shape for k, v in values.items() if "_trainable_variables" in k) == [(3,), (3,), (4, 3), (8, 4)]


def test_an_optimizer_with_another_order_of_variables(models, tmp_path):
    import tensorflow as tf

    from tests.checkpoints.small import effective, values

    def backwards(model):
        return variables_of(model)[::-1]

    model, optimizer = trained(models, adam, backwards)
    old = save(tmp_path / "old", model=model, optimizer=optimizer)
    done = graphfreeze.checkpoint(old, tmp_path / "new", into=models / RULE)
    assert any("stood in another order than the model's" in w for w in done.warnings)
    rewritten, fresh = load(models / RULE), adam()
    fresh.build(graphfreeze.trainable_variables(rewritten))
    tf.train.Checkpoint(model=rewritten, optimizer=fresh).read(str(tmp_path / "new")).assert_consumed()
    assert all(np.array_equal(v, values(model)[k]) for k, v in effective(rewritten).items())
    scale, _, kernel, table = (v.numpy() for v in optimizer._momentums)
    found = [v.numpy() for v in fresh._momentums]
    assert [f.shape for f in found] == [(3, 4), (4, 3), (3,)]
    assert np.array_equal(found[0], table[5:])
    assert np.array_equal(found[1], kernel)
    assert np.array_equal(found[2], scale)


def test_several_optimizers(models, tmp_path):
    """It is not known which of them should hold a variable that did not train."""
    import tensorflow as tf

    model = load(models / RULE)
    first, second = adam(), adam()
    table, kernel, scale = graphfreeze.trainable_variables(model)
    first.build([table, kernel])
    second.build([scale])
    tf.train.Checkpoint(model=model, first=first, second=second).write(str(tmp_path / "trained"))
    done = graphfreeze.checkpoint(tmp_path / "trained", tmp_path / "back", from_=models / RULE)
    assert done.added == ()
    (warning,) = done.warnings
    assert warning == (
        "the checkpoint has several optimizers, so it is not known which of them trains 'layer/bias'; the optimizers "
        "do not hold them"
    )
    original, one, other = load(models / "source"), adam(), adam()
    one.build([original.table, original.kernel])
    other.build([original.scale])
    status = tf.train.Checkpoint(model=original, first=one, second=other).read(str(tmp_path / "back"))
    status.assert_consumed()


@pytest.mark.parametrize("rule", ["split", RULE, "live"])
def test_frozen_elements_from_the_model(models, tmp_path, rule):
    import tensorflow as tf

    from tests.checkpoints.small import RULES, effective, masks, values

    model, _ = trained(models, adam)
    old = save(tmp_path / "old", model=model)
    graphfreeze.checkpoint(old, tmp_path / "new", into=models / rule, frozen="model")
    rewritten, source, frozen = load(models / rule), values(load(models / "source")), masks(RULES[rule])
    tf.train.Checkpoint(model=rewritten).read(str(tmp_path / "new")).assert_consumed()
    for name, value in effective(rewritten).items():
        assert np.array_equal(value, np.where(frozen[name], source[name], values(model)[name])), name


def test_two_models_in_one_checkpoint(models, tmp_path):
    import tensorflow as tf

    from tests.checkpoints.small import effective, values

    model, _ = trained(models, adam)
    old = save(tmp_path / "old", model=model, teacher=load(models / "source"))
    with pytest.raises(UsageError) as error:
        graphfreeze.checkpoint(old, tmp_path / "new", into=models / RULE)
    assert str(error.value) == (
        "The checkpoint holds the model more than once: at 'model' and 'teacher'. Say which to convert with --at PATH"
    )
    graphfreeze.checkpoint(old, tmp_path / "new", into=models / RULE, at="model")
    rewritten = load(models / RULE)
    both = tf.train.Checkpoint(model=rewritten, teacher=load(models / "source"))
    both.read(str(tmp_path / "new")).assert_consumed()
    assert all(np.array_equal(v, values(model)[k]) for k, v in effective(rewritten).items())
    with pytest.raises(NoMatchError) as missing:
        graphfreeze.checkpoint(old, tmp_path / "new2", into=models / RULE, at="modle")
    assert str(missing.value) == "The checkpoint has no object at 'modle'. At its root are: 'model', 'teacher'"


def test_an_unconverted_checkpoint_is_noticed_by_the_assertion(models, tmp_path):
    """The README shows it: without it half is restored in silence."""
    import tensorflow as tf

    from tests.checkpoints.small import effective, values

    model, optimizer = trained(models, adam)
    old = save(tmp_path / "old", model=model, optimizer=optimizer)
    rewritten = load(models / "split")
    status = tf.train.Checkpoint(model=rewritten).read(str(old))
    found = effective(rewritten)
    assert np.array_equal(found["table"][:5], values(model)["table"][:5])
    assert not np.array_equal(found["table"][5:], values(model)["table"][5:])
    with pytest.raises(AssertionError, match="graphfreeze/trainable"):
        status.assert_existing_objects_matched()


def test_statistics_of_whole_tensors_cannot_be_cut(models, tmp_path):
    import keras

    model, optimizer = trained(models, lambda: keras.optimizers.Adafactor(0.01), lambda m: [m.table, m.scale])
    old = save(tmp_path / "old", model=model, optimizer=optimizer)
    with pytest.raises(UnsupportedModelError) as error:
        graphfreeze.checkpoint(old, tmp_path / "new", into=models / RULE)
    assert re.fullmatch(
        r"The optimizer at 'optimizer' holds 'adafactor(_\d+)?/table' without saying which variable it belongs to, and "
        r"'table' is stored otherwise after the conversion. Leave the optimizer out of the checkpoint and start it "
        r"afresh, or rewrite the model with --strategy mask",
        str(error.value),
    )
    assert not list(tmp_path.glob("*new*"))


def test_a_slot_of_another_shape_cannot_be_cut(models, tmp_path):
    import tensorflow as tf

    model = load(models / "source")
    optimizer = tf.Module()
    optimizer._iterations = tf.Variable(1, name="iteration")
    optimizer.rows = [tf.Variable(tf.ones([8]), name="opt/r/table")]
    optimizer._variables = [optimizer._iterations, *optimizer.rows]
    old = save(tmp_path / "old", model=model, optimizer=optimizer)
    with pytest.raises(UnsupportedModelError) as error:
        graphfreeze.checkpoint(old, tmp_path / "new", into=models / RULE)
    assert str(error.value) == (
        "The slot 'opt/r/table' of 'table' has shape [8], expected [8, 4]: the optimizer keeps statistics over the "
        "whole tensor, which cannot be cut to a part. Leave the optimizer out of the checkpoint and start it afresh, "
        "or rewrite the model with --strategy mask"
    )


def test_what_does_not_fit(models, tmp_path):
    import tensorflow as tf

    model, _ = trained(models, adam)
    old = save(tmp_path / "old", model=model)
    new = tmp_path / "new"
    graphfreeze.checkpoint(old, new, into=models / RULE)

    def words(error, *arguments, **options):
        with pytest.raises(error) as raised:
            graphfreeze.checkpoint(*arguments, **options)
        return str(raised.value).replace(str(tmp_path), "T").replace(str(models), "M")

    out = tmp_path / "out"
    assert words(UsageError, old, out) == (
        "A checkpoint is converted either into the layout of a rewritten model or from it: give one"
    )
    assert words(UsageError, new, out, into=models / RULE) == (
        "'T/new' is a checkpoint of the rewritten model already. To convert it the other way, give --from instead of "
        "--into"
    )
    assert words(UsageError, old, out, from_=models / RULE) == (
        "'T/old' is a checkpoint of the original model already. To convert it the other way, give --into instead of "
        "--from"
    )
    assert words(UsageError, old, out, into=models / "source") == (
        "'M/source' carries no freeze, so checkpoints of its source fit it as they are. Give the model that "
        "graphfreeze rewrote"
    )
    assert words(InputOutputError, old, new, into=models / RULE) == (
        "'T/new' exists already. Give --overwrite to replace it"
    )
    graphfreeze.checkpoint(old, new, into=models / RULE, overwrite=True)
    assert words(InputOutputError, old, old, into=models / RULE, overwrite=True) == (
        "'T/old' is the checkpoint being read. Write to another prefix"
    )
    assert words(InputOutputError, tmp_path / "od", out, into=models / RULE).startswith(
        "'T/od' is no checkpoint: there is no file 'T/od.index'. There are: 'T/old'"
    )
    assert words(InputOutputError, old, tmp_path, into=models / RULE) == (
        "'T' is a folder. Give a prefix in it, such as 'T/ckpt-1'"
    )
    other = tf.Module()
    other.weights = tf.Variable([1.0], name="weights")
    save(tmp_path / "other", model=other)
    assert words(NoMatchError, tmp_path / "other", out, into=models / RULE) == (
        "'T/other' is no checkpoint of the original of 'M/mixed': it holds no value of 'table', 'layer/kernel', "
        "'layer/bias', 'scale'. It holds 'weights'"
    )
    larger = load(models / "source")
    shaped = tf.Module()
    for name in ("table", "kernel", "bias", "scale", "held"):
        setattr(shaped, name, tf.Variable(getattr(larger, name)))
    shaped.table = tf.Variable(tf.zeros([9, 4]), name="table")
    save(tmp_path / "larger", model=shaped)
    assert words(UsageError, tmp_path / "larger", out, into=models / RULE) == (
        "'T/larger' does not fit the model: 'table' is float32 [9, 4] there, expected float32 [8, 4]. Give a "
        "checkpoint of the model that was rewritten"
    )
    index = tmp_path / "old.index"
    data = bytearray(index.read_bytes())
    data[len(data) // 2] ^= 0xFF
    index.write_bytes(bytes(data))
    assert "is damaged" in words(InputOutputError, old, out, into=models / RULE)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        f"{name}.{end}" for name in ("old", "new", "other", "larger") for end in ("index", "data-00000-of-00001")
    )
