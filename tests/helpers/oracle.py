"""The oracle: trains an ORIGINAL model with chosen elements as constants, in plain TensorFlow and numpy.

It never builds a frozen graph. Trainable elements live in variables of the oracle's own; before each step the
original variable is assigned its effective value, the original's gradient is taken, cut down to the trainable elements
and given to the optimizer together with the oracle's variables only. So a frozen element is a constant by construction,
and global-norm clipping, weight decay and averages see live elements only. It imports nothing of graphfreeze.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tests.helpers.training import Gradient, Mode, Optimizer, Training, make_gradients
from tests.helpers.variables import Array, find_variable, trainable_of

Storage = Literal["stop", "split", "mask"]


@dataclass(frozen=True, slots=True)
class Frozen:
    """Which elements of one variable are constant, and what shape the rest is stored in."""

    mask: npt.NDArray[np.bool_]
    """True = frozen; the variable's shape."""
    storage: Storage
    """split: a tensor of the trainable elements' own shape. mask: full shape, zero gradient where frozen. stop: none"""


class Part(Protocol):
    """The trainable elements of one variable."""

    original: tf.Variable
    trainable: tf.Variable

    def effective(self) -> Array: ...

    def restrict(self, gradient: Gradient) -> Gradient: ...


class WholePart:
    """Nothing frozen: the original variable itself is trained."""

    def __init__(self, variable: tf.Variable) -> None:
        self.original = self.trainable = variable

    def effective(self) -> Array:
        return np.array(self.original.numpy())

    def restrict(self, gradient: Gradient) -> Gradient:
        return gradient


class SplitPart:
    """The trainable elements as a smaller tensor: a product of index sets, one per axis."""

    def __init__(self, variable: tf.Variable, mask: npt.NDArray[np.bool_]) -> None:
        self.original = variable
        self.base = np.array(variable.numpy())
        self.axes = box_of(~mask)
        self.trainable = tf.Variable(self.base[np.ix_(*self.axes)], dtype=variable.dtype, name=_part_name(variable))

    def effective(self) -> Array:
        value = self.base.copy()
        value[np.ix_(*self.axes)] = self.trainable.numpy()
        return value

    def restrict(self, gradient: Gradient) -> Gradient:
        if gradient is None:
            return None
        if not isinstance(gradient, tf.IndexedSlices):
            return tf.constant(gradient.numpy()[np.ix_(*self.axes)], dtype=self.original.dtype)
        rows, *rest = self.axes
        ids = gradient.indices.numpy()
        keep = np.isin(ids, rows)
        values = gradient.values.numpy()[keep][np.ix_(np.arange(int(keep.sum())), *rest)]
        return _slices(gradient, values, np.searchsorted(rows, ids[keep]), self.trainable)


class MaskPart:
    """The trainable elements within a tensor of full shape; the gradient is zero at the frozen ones."""

    def __init__(self, variable: tf.Variable, mask: npt.NDArray[np.bool_]) -> None:
        self.original = variable
        self.base = np.array(variable.numpy())
        self.mask = mask
        self.trainable = tf.Variable(self.base, dtype=variable.dtype, name=_part_name(variable))

    def effective(self) -> Array:
        return np.where(self.mask, self.base, self.trainable.numpy())

    def restrict(self, gradient: Gradient) -> Gradient:
        if gradient is None:
            return None
        if not isinstance(gradient, tf.IndexedSlices):
            value = gradient.numpy()
            return tf.constant(np.where(self.mask, np.zeros_like(value), value), dtype=self.original.dtype)
        ids = gradient.indices.numpy()
        live_rows = (~self.mask).reshape(self.mask.shape[0], -1).any(axis=1)
        keep = np.asarray(live_rows)[ids]
        values = gradient.values.numpy()[keep]
        values = np.where(self.mask[ids[keep]], np.zeros_like(values), values)
        return _slices(gradient, values, ids[keep], self.trainable)


class Oracle:
    """An original model in training with some elements constant. `frozen` is keyed by path or name."""

    def __init__(self, loaded: Any, frozen: Mapping[str, Frozen], training: Training, mode: Mode = "eager") -> None:
        self.loaded = loaded
        rules = {id(find_variable(loaded, key)): rule for key, rule in frozen.items()}
        self._parts: dict[str, Part] = {
            path: _part(variable, rules.get(id(variable)))
            for path, variable in trainable_of(loaded).items()
            if not (id(variable) in rules and rules[id(variable)].storage == "stop")
        }
        originals = [part.original for part in self._parts.values()]
        self._gradients = make_gradients(training, loaded, originals, mode)

    @property
    def trainable(self) -> dict[str, tf.Variable]:
        """What the optimizer gets, by the path of the original variable, in object-graph order."""
        return {path: part.trainable for path, part in self._parts.items()}

    def effective(self) -> dict[str, Array]:
        """The effective value of every variable that is trained in part or whole."""
        return {path: part.effective() for path, part in self._parts.items()}

    def gradients(self, step: int) -> dict[str, Gradient]:
        """The gradients at the trainable elements, for step n's batch at the values of now."""
        self._write()
        raw = self._gradients(step)
        return {path: part.restrict(g) for (path, part), g in zip(self._parts.items(), raw, strict=True)}

    def step(self, optimizer: Optimizer, step: int) -> None:
        gradients = self.gradients(step)
        optimizer.apply(list(gradients.values()), list(self.trainable.values()))
        self._write()

    def train(self, optimizer: Optimizer, steps: int = 20) -> None:
        """Runs the steps and the optimizer's last word (`use_ema` puts its averages in place)."""
        for step in range(steps):
            self.step(optimizer, step)
        optimizer.finalize_variable_values(list(self.trainable.values()))
        self._write()

    def _write(self) -> None:
        for part in self._parts.values():
            if part.trainable is not part.original:
                part.original.assign(tf.constant(part.effective(), dtype=part.original.dtype))


def box_of(elements: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.intp], ...]:
    """The index sets, one per axis, whose product is exactly these elements."""
    axes = tuple(np.unique(index) for index in np.nonzero(elements))
    if not elements.any() or not elements.ndim or not elements[np.ix_(*axes)].all():
        raise ValueError("these elements are no product of index sets: storage 'split' does not fit, use 'mask'")
    return axes


def _part(variable: tf.Variable, rule: Frozen | None) -> Part:
    if rule is None:
        return WholePart(variable)
    shape = variable.numpy().shape
    if rule.mask.shape != shape:
        raise ValueError(f"mask of shape {rule.mask.shape} for variable '{variable.name}' of shape {shape}")
    return SplitPart(variable, rule.mask) if rule.storage == "split" else MaskPart(variable, rule.mask)


def _part_name(variable: tf.Variable) -> str:
    return str(variable.name).removesuffix(":0") + "/oracle"


def _slices(like: tf.IndexedSlices, values: Array, ids: Array, variable: tf.Variable) -> tf.IndexedSlices:
    return tf.IndexedSlices(
        tf.constant(values, dtype=like.values.dtype),
        tf.constant(ids, dtype=like.indices.dtype),
        dense_shape=tf.constant(variable.shape.as_list(), dtype=tf.int64),
    )
