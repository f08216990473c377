"""Every way to write a variable in a function, every dtype, and numbers that arithmetic would change."""

from itertools import product

import numpy as np
import pytest

import graphfreeze
from tests.conftest import MODELS
from tests.end_to_end.cases import FULL

pytestmark = pytest.mark.tf

ROWS, COLUMNS = 8, 6
DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64")
COPIES = ("snapshot", "live")
INDICES = ("[1:3]", "[:-1]", "[[0, 2, 5]]", "[:, 2]", "[[0, 7], [1, 5]]", "[0, 0]", "[::2, 1::2]", "")


def writer(dtype):  # noqa: C901 (a class with one function for each way to write)
    import tensorflow as tf

    class Writer(tf.Module):
        """Each function writes ``x`` in its own way, all of it."""

        def __init__(self):
            super().__init__()
            start = np.arange(1, ROWS * COLUMNS + 1).reshape(ROWS, COLUMNS)
            self.x = tf.Variable(tf.cast(start, dtype), name="x")
            self.other = tf.Variable(1.0, name="other")

        @tf.function(input_signature=[])
        def __call__(self):
            return self.x * tf.cast(self.other, dtype)

        @tf.function(input_signature=[])
        def assign(self):
            return self.x.assign(self.x * 2)

        @tf.function(input_signature=[])
        def add(self):
            return self.x.assign_add(tf.ones_like(self.x))

        @tf.function(input_signature=[])
        def descend(self):
            tf.raw_ops.ResourceApplyGradientDescent(
                var=self.x.handle, alpha=tf.cast(1, dtype), delta=tf.ones_like(self.x)
            )

        @tf.function(input_signature=[])
        def scatter(self):
            rows = tf.constant([0, 1, 2, 0])
            self.x.scatter_sub(tf.IndexedSlices(tf.ones([4, COLUMNS], dtype), rows))

        @tf.function(input_signature=[])
        def scatter_nd(self):
            places = tf.constant([[i, j] for i in range(ROWS) for j in range(COLUMNS)])
            tf.raw_ops.ResourceScatterNdAdd(ref=self.x.handle, indices=places, updates=tf.ones([ROWS * COLUMNS], dtype))

        @tf.function(input_signature=[])
        def slices(self):
            self.x[1:, :4].assign(tf.zeros([ROWS - 1, 4], dtype))

        @tf.function(input_signature=[tf.TensorSpec([], tf.bool)])
        def branch(self, flag):
            if flag:
                self.x.assign_add(tf.ones_like(self.x))
            else:
                self.x.assign_sub(tf.ones_like(self.x))
            return self.x + 0

        @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
        def loop(self, count):
            total = tf.zeros_like(self.x)
            for _ in tf.range(count):
                self.x.assign_add(tf.ones_like(self.x))
                total += self.x
            return total

        @tf.function(input_signature=[])
        def twice(self):
            self.x.assign_add(tf.ones_like(self.x))
            between = self.x * 2
            self.x.assign_sub(between)
            return between + self.x

    return Writer()


CALLS = (
    *(("assign",), ("add",), ("descend",), ("scatter",), ("scatter_nd",), ("slices",), ("branch", True)),
    *(("branch", False), ("loop", 3), ("twice",)),
)


def run(model, call):
    import tensorflow as tf

    name, *arguments = call
    return getattr(model, name)(*map(tf.constant, arguments))


@pytest.mark.parametrize(("number", "dtype", "copy"), [(n, *pair) for n, pair in enumerate(product(DTYPES, COPIES))])
def test_every_write_leaves_frozen_elements_and_writes_the_rest(number, dtype, copy, tmp_path):
    import tensorflow as tf

    tf.saved_model.save(writer(dtype), str(tmp_path / "model"))
    # Two indices a case, or all: every index meets every dtype or copy over the cases.
    for index in INDICES if FULL else (INDICES[number % len(INDICES)], INDICES[(3 * number + 1) % len(INDICES)]):
        out = tmp_path / f"out{INDICES.index(index)}"
        graphfreeze.rewrite(tmp_path / "model", out, freeze=f"x{index}", copy=copy)
        held, plain = tf.saved_model.load(str(out)), tf.saved_model.load(str(tmp_path / "model"))
        frozen = np.zeros((ROWS, COLUMNS), bool)
        frozen[eval(f"np.s_{index}") if index else ...] = True
        start = plain.x.numpy()
        for call in CALLS:
            plain.x.assign(np.where(frozen, start, held.x.numpy()))
            result, expected = run(held, call), run(plain, call)
            after, free = held.x.numpy(), plain.x.numpy()
            assert after[frozen].tobytes() == start[frozen].tobytes(), (index, call)
            if call[0] not in ("twice", "loop") or not frozen.any():
                assert after[~frozen].tobytes() == free[~frozen].tobytes(), (index, call)
            if call[0] in ("assign", "add", "branch"):
                assert result.numpy().tobytes() == np.where(frozen, start, expected.numpy()).tobytes(), (index, call)
            assert graphfreeze.value(held, "x").tobytes() == np.where(frozen, start, after).tobytes()
        # Element by element these two do what they would do alone.
        value = np.where(frozen, start, held.x.numpy())
        np.testing.assert_array_equal(run(held, ("loop", 2)).numpy()[frozen], (value + value)[frozen])


@pytest.mark.parametrize("index", INDICES[:-1])
def test_denormal_numbers_and_negative_zero_survive(index, tmp_path):
    import tensorflow as tf

    model = writer("float32")
    odd = np.resize(np.array([-0.0, 1e-40, -1e-42, np.inf, np.nan, 3.4e38], np.float32), (ROWS, COLUMNS))
    model.x.assign(odd)
    tf.saved_model.save(model, str(tmp_path / "model"))
    graphfreeze.rewrite(tmp_path / "model", tmp_path / "out", freeze=f"x{index}")
    held = tf.saved_model.load(str(tmp_path / "out"))
    stored = tf.train.load_checkpoint(str(tmp_path / "model" / "variables" / "variables"))
    start = stored.get_tensor("x/.ATTRIBUTES/VARIABLE_VALUE")
    frozen = np.zeros((ROWS, COLUMNS), bool)
    frozen[eval(f"np.s_{index}")] = True
    for call in CALLS:
        run(held, call)
    assert held.x.numpy()[frozen].tobytes() == start[frozen].tobytes()
    assert graphfreeze.value(held, "x")[frozen].tobytes() == start[frozen].tobytes()


def test_the_state_of_a_generator_is_held_when_asked_for_by_name(tmp_path):
    import tensorflow as tf

    class Noisy(tf.Module):
        def __init__(self):
            super().__init__()
            self.generator = tf.random.Generator.from_seed(3)
            self.scale = tf.Variable(2.0)

        @tf.function(input_signature=[])
        def __call__(self):
            return self.scale * self.generator.normal([3])

    tf.saved_model.save(Noisy(), str(tmp_path / "model"))
    name = next(v.path for v in graphfreeze.inspect(tmp_path / "model").meta_graphs[0].variables if v.writes)
    graphfreeze.rewrite(tmp_path / "model", tmp_path / "out", freeze=name, state=True)
    held, plain = (tf.saved_model.load(str(tmp_path / folder)) for folder in ("out", "model"))
    first = plain().numpy()
    assert plain().numpy().tobytes() != first.tobytes()
    assert held().numpy().tobytes() == held().numpy().tobytes() == first.tobytes()


def test_a_step_leaves_the_slots_of_a_whole_variable_alone(tmp_path):
    import tensorflow as tf

    graphfreeze.rewrite(MODELS / "train_keras", tmp_path / "out", freeze="kernel")
    held = tf.saved_model.load(str(tmp_path / "out"))
    slots = {n: list(getattr(held.optimizer, n)) for n in ("_momentums", "_velocities")}
    before = {n: [v.numpy() for v in found] for n, found in slots.items()}
    for _ in range(3):
        held.train(tf.constant([[1, 2, 3]]), tf.ones([1, 3]))
    for name, found in slots.items():
        moved = [v.numpy().tobytes() != b.tobytes() for v, b in zip(found, before[name], strict=True)]
        assert moved == [True, False]  # the table's, the kernel's
