"""Gradients masked at their source: steps of many kinds follow an oracle in which frozen elements have none.

Each step is plain TensorFlow or Keras. The oracle is the same Python, whose gradients have zeros at frozen elements as
soon as the tape gives them; its frozen elements are put back after every step.
"""

import numpy as np
import pytest

import graphfreeze
from graphfreeze.passes.pair import prepare_pair
from graphfreeze.savedmodel import open_draft
from tests.end_to_end.test_finalize import effective_values
from tests.passes.test_finalize import contents

pytestmark = pytest.mark.tf

STEPS = 6
NOT_FOUND = "source not found"


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def make(step):
    """A module with a step of that kind; ``seen`` is what the optimizer gets to see of the gradients."""
    import tensorflow as tf

    return type("Module", (tf.Module,), {"seen": staticmethod(lambda gradients: gradients)})(), STEPS_BY_NAME[step]


def finish(module, weights, loss, apply, dtype=None):
    import tensorflow as tf

    dtype = dtype or tf.float32

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int32), tf.TensorSpec([None, 4], dtype)])
    def train(ids, x):
        with tf.GradientTape() as tape:
            value = loss(ids, x)
        apply(module.seen(tape.gradient(value, weights)), weights)
        return tf.cast(value, tf.float64)

    module.weights, module.train = weights, train
    return module


def variables(dtype="float32", *shapes):
    import tensorflow as tf

    shapes = shapes or ((8, 4), (4, 3), (3,))
    return [tf.Variable(numbers(7 + i, *s), name=f"w{i}", dtype=dtype) for i, s in enumerate(shapes)]


def usual_loss(w, scale=1.0):
    import tensorflow as tf

    def loss(ids, x):
        rows = tf.reduce_mean(tf.gather(w[0], ids), axis=1)
        scores = tf.matmul(tf.concat([rows, x], 0), w[1]) + w[2]
        return scale * tf.reduce_mean(tf.square(scores - 1.0))

    return loss


def dense(gradients):
    import tensorflow as tf

    return [tf.convert_to_tensor(g) for g in gradients]


def descend(gradients, weights, rate=0.3):
    for g, v in zip(dense(gradients), weights, strict=True):
        v.assign_sub(rate * g)


def in_a_function_of_its_own(module):
    """A nested function computes the gradients and clips them; the step applies what it gives back."""
    import tensorflow as tf

    w = variables()
    loss = usual_loss(w)

    @tf.function
    def clipped(ids, x):
        with tf.GradientTape() as tape:
            value = loss(ids, x)
        gradients = dense(module.seen(tape.gradient(value, w)))
        return tf.clip_by_global_norm(gradients, 0.1)[0]

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int32), tf.TensorSpec([None, 4])])
    def train(ids, x):
        descend(clipped(ids, x), w)
        return tf.cast(loss(ids, x), tf.float64)

    module.weights, module.train = w, train
    return module


def clipped_in_a_function(module):
    """Only the clipping is a function of its own: it is given the gradients, and gives them back."""
    import tensorflow as tf

    w = variables()

    @tf.function
    def clip(gradients):
        return tf.clip_by_global_norm(gradients, 0.1)[0]

    return finish(module, w, usual_loss(w), lambda g, v: descend(clip(dense(g)), v))


def not_finite_where_frozen(module):
    """The gradient of the first element of ``w2`` is NaN in every step, and a step that is not finite is skipped."""
    import tensorflow as tf

    w = variables()
    w[2].assign(tf.constant([0.0, 1.0, 2.0]))
    usual = usual_loss(w)

    def apply(gradients, v):
        values = [tf.reduce_all(tf.math.is_finite(g)) for g in dense(gradients)]
        tf.cond(tf.reduce_all(values), lambda: descend(gradients, v), lambda: None)

    return finish(module, w, lambda ids, x: usual(ids, x) + tf.reduce_sum(tf.sqrt(tf.abs(w[2]))), apply)


def norm_in_the_loss(module):
    """The loss itself is a norm of something of the variable's shape: that is no gradient, and stays as it is."""
    import tensorflow as tf

    w = variables()
    target = tf.constant(numbers(3, 8, 4).astype(np.float32))

    def loss(ids, x):
        near = tf.sqrt(tf.reduce_sum(tf.square(w[0] - target))) + tf.norm(w[1]) + tf.sqrt(tf.nn.l2_loss(w[2]))
        return near * tf.reduce_mean(x * x)

    return finish(module, w, loss, descend)


def decay_in_the_norm(module):
    """Decay is added to the gradient before it is clipped: a constant takes no part in that either."""
    import tensorflow as tf

    w = variables()
    frozen = module.frozen

    def apply(gradients, v):
        decayed = [g + 0.1 * tf.where(m, 0.0, x) for g, x, m in zip(dense(gradients), v, frozen(v), strict=True)]
        descend(tf.clip_by_global_norm(decayed, 0.2)[0], v)

    return finish(module, w, usual_loss(w), apply)


def flattened(module):
    """All gradients in one vector: which element belongs to which variable is not followed."""
    import tensorflow as tf

    w = variables()

    def apply(gradients, v):
        flat = tf.concat([tf.reshape(g, [-1]) for g in dense(gradients)], 0)
        parts = tf.split(tf.clip_by_norm(flat, 0.1), [32, 12, 3])
        descend([tf.reshape(p, x.shape) for p, x in zip(parts, v, strict=True)], v)

    return finish(module, w, usual_loss(w), apply)


def keras(module, name="Adam", scaled=False, **options):
    import keras

    w = variables()
    optimizer = getattr(keras.optimizers, name)(0.02, **options)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=64.0, dynamic_growth_steps=3)
    optimizer.build(w)
    module.optimizer = optimizer
    return finish(module, w, usual_loss(w, 64.0 if scaled else 1.0), optimizer.apply)


def tf_keras(module, **options):
    import tf_keras

    w = variables()
    optimizer = tf_keras.optimizers.Adam(0.02, jit_compile=False, **options)
    optimizer.build(w)
    module.optimizer = optimizer
    return finish(module, w, usual_loss(w), lambda g, v: optimizer.apply_gradients(zip(g, v, strict=True)))


def half_precision(module):
    """The gradient is float16 where it is clipped, the variable float32."""
    import tensorflow as tf

    w = variables()
    halves = [tf.cast(numbers(5, *v.shape), tf.float16) for v in w]

    def apply(gradients, v):
        short = [tf.cast(g, tf.float16) + 0 * h for g, h in zip(dense(gradients), halves, strict=True)]
        descend([tf.cast(g, tf.float32) for g in tf.clip_by_global_norm(short, 0.25)[0]], v)

    return finish(module, w, usual_loss(w), apply)


def scalars(module):
    """One variable is a single number."""
    import tensorflow as tf

    w = variables("float64", (8, 4), (4, 3), ())

    def loss(ids, x):
        rows = tf.reduce_mean(tf.gather(w[0], ids), axis=1)
        return tf.reduce_mean(tf.square(w[2] * tf.matmul(tf.concat([rows, x], 0), w[1]) - 1.0))

    def apply(gradients, v):
        descend(tf.clip_by_global_norm(dense(gradients), 0.1)[0], v)

    return finish(module, w, loss, apply, tf.float64)


def large(module):
    """Masks of more than 64 KiB are variables, which reach the branch in which the gradients are clipped."""
    import tensorflow as tf

    w = variables("float32", (3000, 200), (200, 3), (3,))

    def loss(ids, x):
        rows = tf.reduce_mean(tf.gather(w[0], ids), axis=1)
        return tf.reduce_mean(tf.square(tf.matmul(rows, w[1]) + w[2] - 1.0)) + tf.reduce_mean(x)

    def update(gradients, v):
        clipped = tf.clip_by_global_norm(gradients, 0.3)[0]
        v[0].scatter_sub(tf.IndexedSlices(0.2 * clipped[0].values, clipped[0].indices))
        descend(clipped[1:], v[1:])

    def apply(gradients, v):
        tf.cond(tf.reduce_sum(v[2]) > -1e9, lambda: update(gradients, v), lambda: None)

    return finish(module, w, loss, apply)


STEPS_BY_NAME = {
    "nested function": in_a_function_of_its_own,
    "clip in a function": clipped_in_a_function,
    "not finite where frozen": not_finite_where_frozen,
    "norm in the loss": norm_in_the_loss,
    "decay in the norm": decay_in_the_norm,
    "half precision": half_precision,
    "scalars": scalars,
    "large": large,
    "Keras clipnorm": lambda m: keras(m, clipnorm=0.05),
    "Keras accumulation": lambda m: keras(m, "SGD", momentum=0.9, global_clipnorm=0.1, gradient_accumulation_steps=2),
    "Keras loss scale": lambda m: keras(m, global_clipnorm=0.1, scaled=True),
    "tf_keras global_clipnorm": lambda m: tf_keras(m, global_clipnorm=0.1),
    "flattened": flattened,
}
SELECTED = {"w0": "w0[2:5]", "w1": "w1[:, :2]", "w2": "w2[:1]"}
CHANGED = {
    "scalars": SELECTED | {"w2": "w2"},
    "large": {"w0": "w0[@mask.npy]", "w2": "w2"},
    "nested function": {"w0": "w0", "w1": "w1[[0, 1], [0, 2]]"},
}
RESAVED = ("clip in a function", "large", "nested function", "scalars")
"""Steps whose trained model is saved again, and finalized."""


def masks_of(weights, chosen, large):
    found = []
    for i, v in enumerate(weights):
        mask = np.zeros(v.shape, bool)
        text = chosen.get(f"w{i}")
        if text == f"w{i}":
            mask[...] = True
        elif text is not None:
            mask[large if "@" in text else eval(f"np.s_{text[2:]}")] = True
        found.append(mask)
    return found


def batch(step, dtype, rows=8):
    import tensorflow as tf

    generator = np.random.default_rng(100 + step)
    return tf.constant(generator.integers(0, rows, (5, 3)), tf.int32), tf.constant(
        generator.standard_normal((6, 4)), dtype
    )


def masked(gradients, masks):
    import tensorflow as tf

    found = []
    for g, mask in zip(gradients, masks, strict=True):
        if isinstance(g, tf.IndexedSlices):
            values = tf.where(tf.gather(mask, g.indices), tf.zeros_like(g.values), g.values)
            found.append(tf.IndexedSlices(values, g.indices, g.dense_shape))
        else:
            found.append(tf.where(mask, tf.zeros_like(g), g))
    return found


def problems(plain, rewritten, folder):
    """What the messages alone say against a rewritten model."""
    (evidence,) = prepare_pair(open_draft(plain), open_draft(rewritten), folder).evidence
    return evidence.problems


def built(step, masks=None):
    module, recipe = make(step)
    module.frozen = lambda weights: masks or [np.zeros(v.shape, bool) for v in weights]
    if masks:
        module.seen = lambda gradients: masked(gradients, masks)
    return recipe(module)


@pytest.mark.parametrize("step", STEPS_BY_NAME)
def test_frozen_elements_take_no_part_in_norms(step, tmp_path, monkeypatch):
    import tensorflow as tf

    from tests.helpers.canonical import assert_same_model
    from tests.helpers.resaved import assign_all, save, save_again

    chosen = CHANGED.get(step, SELECTED)
    monkeypatch.chdir(tmp_path)
    large_mask = np.random.default_rng(0).random((3000, 200)) < 0.4
    np.save("mask.npy", large_mask)
    plain = built(step)
    tf.saved_model.save(plain, "plain")
    plan = graphfreeze.rewrite("plain", "out", freeze=tuple(chosen.values()))
    assert problems(tmp_path / "plain", tmp_path / "out", tmp_path / "pair") == ()
    held = tf.saved_model.load("out")
    masks = masks_of(plain.weights, chosen, large_mask)
    oracle = built(step, masks)
    before = [v.numpy() for v in oracle.weights]
    for number in range(STEPS):
        inputs = batch(number, held.train.concrete_functions[0].inputs[1].dtype, before[0].shape[0])
        found, want = held.train(*inputs).numpy(), oracle.train(*inputs).numpy()
        assert step == "flattened" or found == pytest.approx(want, rel=1e-5, nan_ok=True)
        for v, old, mask in zip(oracle.weights, before, masks, strict=True):
            v.assign(np.where(mask, old, v.numpy()))
    said = {(w.gradient or "").split("'")[0] for v in plan.meta_graphs[0].touched() for w in v.writes}
    if step == "flattened":
        assert said == {NOT_FOUND}
        assert [w for w in plan.warnings if "the source of this one was not found" in w]
    elif step == "norm in the loss":
        assert said == {""}
    else:
        assert "masked at " in said
        assert NOT_FOUND not in said
    for i, (v, expected) in enumerate(zip(held.weights, oracle.weights, strict=True)):
        found, want = graphfreeze.value(held, f"weights/{i}"), expected.numpy()
        assert v.numpy()[masks[i]].tobytes() == before[i][masks[i]].tobytes()
        assert masks[i].all() or (want != before[i])[~masks[i]].any()
        if step != "flattened":
            eps = np.finfo(want.dtype).eps if want.dtype != np.float32 or step != "half precision" else 1e-3
            np.testing.assert_allclose(found, want, rtol=0, atol=16 * eps * np.abs(want).max())
    graphfreeze.finalize("out", "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "plain")
    if step in RESAVED:
        values = effective_values(held, plan)
        save(held, tmp_path / "trained", signatures=False)
        assert problems(tmp_path / "plain", tmp_path / "trained", tmp_path / "again pair") == ()
        expected = save_again(tmp_path / "plain", tmp_path / "expected", signatures=False, change=assign_all(values))
        graphfreeze.finalize("trained", "trained plain")
        assert_same_model(tmp_path / "trained plain", expected)
