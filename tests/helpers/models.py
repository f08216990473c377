"""How each fixture is called and trained: seeded inputs, functions to train through, a loss that misses nothing.

The loss sums weighted squared distances over every float output, in float64, so each trainable element that an
input touches has a gradient; `assert_depends` proves it for the unfrozen model.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tests.helpers.training import Batch, Mode, Training, make_gradients
from tests.helpers.variables import Array, trainable_of

Lack = Collection[int]
"""Ids that no batch may contain (for optimizers that must leave their rows alone)."""
Maker = Callable[[np.random.Generator, Lack], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Call:
    """One function and how its inputs are made."""

    function: str
    """A name under the root; `__call__` is the root itself."""
    inputs: Maker


_STEPS = (("", "[0]"), ("signature ", ""))
"""How ``outputs_of`` names a function and a signature."""


@dataclass(frozen=True, slots=True)
class FixtureModel:
    """What a test needs to know to run and train a fixture."""

    calls: tuple[Call, ...]
    """Those the loss is made of; together they reach every trainable variable."""
    others: tuple[Call, ...] = ()
    """Functions that are not trained through."""
    no_gradient: Mapping[str, str] = field(default_factory=dict)
    """Variable path -> why even the original has no gradient there."""
    no_gradient_calls: Mapping[str, str] = field(default_factory=dict)
    """Function -> why training through it is impossible or useless in the original, too."""
    steps: tuple[str, ...] = ()
    """Functions that update the weights, which a freeze is there to change; what they do is tested in test_guards."""

    @property
    def skip(self) -> frozenset[str]:
        """What is left out where all functions and signatures are compared."""
        return frozenset(f"{kind}{name}{number}" for name in self.steps for kind, number in _STEPS)

    def training(self, *, seed: int = 0, lack: Lack = ()) -> Training:
        """Batches and loss; with `lack`, these ids never occur in a batch."""
        return make_training(self.calls, seed, lack)


def make_training(calls: tuple[Call, ...], seed: int = 0, lack: Lack = ()) -> Training:
    """Training through these calls."""

    def batch(step: int) -> Batch:
        generator = np.random.default_rng([seed, step])
        return tuple(tuple(tf.constant(x) for x in call.inputs(generator, lack)) for call in calls)

    def loss(loaded: Any, inputs: Batch) -> tf.Tensor:
        outputs = [function_of(loaded, call.function)(*xs) for call, xs in zip(calls, inputs, strict=True)]
        return loss_of(outputs)

    return Training(batch, loss)


def function_of(loaded: Any, name: str) -> Any:
    return loaded if name == "__call__" else getattr(loaded, name)


def loss_of(outputs: Any) -> tf.Tensor:
    """Mean weighted squared distance to fixed targets, summed over all float outputs; float64."""
    floats = [y for y in tf.nest.flatten(outputs) if y.dtype.is_floating]
    return tf.add_n([_distance(tf.cast(y, tf.float64), shift) for shift, y in enumerate(floats)])


def _distance(y: tf.Tensor, shift: int) -> tf.Tensor:
    y = tf.reshape(y, [-1])
    place = tf.cast(tf.range(tf.size(y)), tf.float64) + 3.0 * shift
    return tf.reduce_mean((1.0 + 0.5 * tf.sin(place)) * (y - 0.3 * tf.cos(2.0 * place) - 0.1) ** 2)


def gradient_masks(
    loaded: Any, training: Training, steps: int = 1, mode: Mode = "eager"
) -> dict[str, npt.NDArray[np.bool_]]:
    """By path, which elements of the unfrozen model have a non-zero gradient in some step."""
    variables = trainable_of(loaded)
    gradients = make_gradients(training, loaded, list(variables.values()), mode)
    touched = {
        path: np.zeros(
            v.shape.as_list() if v.shape.rank is None or None not in v.shape.as_list() else v.numpy().shape, bool
        )
        for path, v in variables.items()
    }
    for step in range(steps):
        for path, gradient in zip(variables, gradients(step), strict=True):
            if gradient is not None:
                touched[path] |= np.asarray(tf.convert_to_tensor(gradient).numpy() != 0)
    return touched


def assert_depends(
    loaded: Any, training: Training, elements: Mapping[str, npt.NDArray[np.bool_]], steps: int = 1
) -> None:
    """Every element marked True (by variable path) moves the loss of the unfrozen model."""
    touched = gradient_masks(loaded, training, steps)
    for path, wanted in elements.items():
        missed = np.argwhere(wanted & ~touched[path])
        assert not len(missed), (
            f"the loss does not depend on {len(missed)} elements of '{path}', first {missed[0].tolist()}"
        )


def _ids(*shape: int, below: int) -> Maker:
    """Ids that between them name every allowed id, if they are as many."""

    def make(generator: np.random.Generator, lack: Lack) -> tuple[Array]:
        allowed = np.array([i for i in range(below) if i not in lack], np.int32)
        return (generator.permutation(np.resize(allowed, shape).ravel()).reshape(shape),)

    return make


def _floats(*shape: int) -> Maker:
    return lambda generator, _: (generator.standard_normal(shape).astype(np.float32),)


def _positive(*shape: int) -> Maker:
    """Entries above zero, so that the branch taken at a positive sum is taken."""
    return lambda generator, _: (np.abs(generator.standard_normal(shape)).astype(np.float32),)


def _branch(number: int) -> Maker:
    return lambda generator, _: (generator.standard_normal((5, 4)).astype(np.float32), np.int32(number))


def _words(generator: np.random.Generator, lack: Lack) -> tuple[Array]:
    """Every word of the vocabulary and, as id 8, an unknown one."""
    words = np.array(["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "zebra"], dtype=object)
    return (words[_ids(6, 3, below=9)(generator, lack)[0]],)


def _bags(generator: np.random.Generator, lack: Lack) -> tuple[Array, Array]:
    """Ten ids in a sparse (4, 5) tensor whose third row is empty."""
    places = [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2), (1, 4), (3, 0), (3, 1), (3, 2), (3, 3)]
    return np.array(places, np.int64), _ids(10, below=6)(generator, lack)[0].astype(np.int64)


def _digit_images(generator: np.random.Generator, _: Lack) -> tuple[Array]:
    return (generator.uniform(0, 1, (8, 8, 8, 1)).astype(np.float32),)


_X4 = _floats(8, 4)
_NO_ELEMENTS = "the variable has no elements"
_SHAPE_ONLY = "read for its shape only"
_DATASET = "TensorFlow has no gradient through dataset functions"
_INTEGER = "no path from the float outputs"

FIXTURES: dict[str, FixtureModel] = {
    "mlp": FixtureModel(
        (Call("__call__", _floats(8, 6)),), (Call("hidden", _floats(8, 6)), Call("scores", _floats(8, 6)))
    ),
    "nested": FixtureModel((Call("__call__", _floats(8, 3)),)),
    "unnamed": FixtureModel((Call("__call__", _X4),)),
    "shared_function": FixtureModel((Call("__call__", _X4), Call("last", _X4))),
    "dtypes": FixtureModel((Call("__call__", _floats(8, 3)),)),
    "shapes": FixtureModel(
        (Call("__call__", _X4),), (Call("sizes", lambda *_: ()),), no_gradient={"template": _SHAPE_ONLY}
    ),
    "scalars": FixtureModel((Call("__call__", _floats(8, 3)),), no_gradient={"empty": _NO_ELEMENTS}),
    "embedding": FixtureModel((Call("__call__", _ids(6, 4, below=12)),)),
    "tied": FixtureModel((Call("__call__", _ids(6, 4, below=12)),)),
    "strings": FixtureModel((Call("__call__", _words),)),
    "gathers": FixtureModel((Call("__call__", _ids(9, below=6)), Call("nd", _ids(9, below=6)), Call("sparse", _bags))),
    "loop": FixtureModel(
        (Call("__call__", _positive(8, 4)), Call("__call__", lambda g, _: (-_positive(8, 4)(g, _)[0],)))
    ),
    "cond_in_loop": FixtureModel(
        (Call("once", _positive(8, 4)),),
        (Call("__call__", _X4),),
        no_gradient_calls={"__call__": "TensorFlow, reloaded: a cond in a loop, the variable in one branch only"},
    ),
    "scan": FixtureModel((Call("__call__", _ids(4, 5, below=10)),)),
    "case": FixtureModel(tuple(Call("__call__", _branch(number)) for number in range(3))),
    "datasets": FixtureModel(
        (Call("__call__", _X4), Call("rows", _X4)),
        (Call("reduced", _X4), Call("mapped", _X4)),
        no_gradient_calls={"reduced": _DATASET, "mapped": _DATASET},
    ),
    "custom_gradient": FixtureModel((Call("__call__", _X4),)),
    "statistics": FixtureModel(
        (Call("train", _X4),), (Call("__call__", _X4), Call("averaged", _X4), Call("project", lambda *_: ()))
    ),
    "keras_lists": FixtureModel((Call("__call__", _X4),)),
    "slots": FixtureModel((Call("__call__", _X4),)),
    "norm_steps": FixtureModel(
        (Call("__call__", _X4),), (Call("quantize", _X4),), steps=("train_fused", "train_plain")
    ),
    "train_keras": FixtureModel((Call("__call__", _ids(8, 3, below=12)),), steps=("train",)),
    "train_tf_keras": FixtureModel((Call("__call__", _ids(8, 3, below=12)),), steps=("train",)),
    "train_loop": FixtureModel((Call("__call__", _ids(8, 3, below=12)),), steps=("train",)),
    "train_clipped": FixtureModel((Call("__call__", _ids(8, 3, below=12)),), steps=("train",)),
    "train_accumulated": FixtureModel((Call("__call__", _ids(8, 3, below=12)),), steps=("train",)),
    "train_ops": FixtureModel((Call("__call__", _X4),), steps=("train", "train_rows")),
    "train_ops_more": FixtureModel((Call("__call__", _X4),), steps=("train", "train_rows")),
    "layer_norm_transformer": FixtureModel((Call("__call__", _ids(4, 5, below=12)),)),
    "keras_embedding": FixtureModel((Call("serve", _ids(6, 5, below=12)),)),
    "keras_conv": FixtureModel((Call("serve", _floats(4, 6, 6, 2)),), (Call("features", _floats(4, 6, 6, 2)),)),
    "keras_gru": FixtureModel((Call("serve", _floats(4, 5, 3)),)),
    "keras_mixed": FixtureModel((Call("serve", _ids(6, 5, below=12)),)),
    "digits": FixtureModel((Call("train", _digit_images),), (Call("serve", _digit_images),)),
}
