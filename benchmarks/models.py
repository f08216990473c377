"""The models that are measured: plain tf.Module SavedModels, also with the textbook recipe in their source."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import numpy.typing as npt
import tensorflow as tf

Array = npt.NDArray[Any]
Masks = Mapping[str, Array]
"""Variable name -> where it is frozen, of a shape that broadcasts to the variable's; for the textbook recipe."""


class Weights(tf.Module):
    """Makes variables, each under the textbook recipe where it has a mask."""

    def __init__(self, masks: Masks | None = None) -> None:
        super().__init__(name="model")
        self._masks = masks or {}
        self._generator = np.random.default_rng(7)
        self.held: dict[str, Sequence[tf.Variable]] = {}

    def add(self, name: str, *shape: int, scale: float | None = None) -> tf.Variable:
        """A new variable."""
        scale = (2.0 / max(1, int(np.prod(shape[:-1])))) ** 0.5 if scale is None else scale
        value = (self._generator.standard_normal(shape, np.float32) * scale).astype(np.float32)
        variable = tf.Variable(value, name=name)
        if name in self._masks:
            mask = tf.Variable(self._masks[name].astype(np.float32), trainable=False, name=f"{name}_mask")
            self.held[name] = (mask, tf.Variable(value, trainable=False, name=f"{name}_copy"))
        return variable

    def value(self, variable: tf.Variable) -> tf.Tensor:
        """The variable, or `m*xp + (1-m)*x`."""
        held = self.held.get(variable.name.removesuffix(":0"))
        if held is None:
            return tf.convert_to_tensor(variable)
        mask, copy = held
        return mask * copy + (1.0 - mask) * variable


class Embedding(Weights):
    """A table and a lookup in it."""

    def __init__(self, rows: int, width: int, masks: Masks | None = None) -> None:
        super().__init__(masks)
        self.table = self.add("embeddings", rows, width, scale=0.05)
        self.call = tf.function(self._call, input_signature=[tf.TensorSpec([None], tf.int32, name="ids")])

    def _call(self, ids: tf.Tensor) -> tf.Tensor:
        # A lookup in the variable itself has a sparse gradient; the recipe can only look up in its result.
        return tf.nn.embedding_lookup(self.table if not self.held else self.value(self.table), ids)


class Dense(Weights):
    """Fully connected layers with ReLU between them."""

    def __init__(self, widths: Sequence[int], masks: Masks | None = None) -> None:
        super().__init__(masks)
        self.kernels = [self.add(f"kernel_{i}", a, b) for i, (a, b) in enumerate(pairwise(widths))]
        self.biases = [self.add(f"bias_{i}", b, scale=0.1) for i, b in enumerate(widths[1:])]
        self.call = tf.function(self._call, input_signature=[tf.TensorSpec([None, widths[0]], tf.float32, name="x")])

    def _call(self, x: tf.Tensor) -> tf.Tensor:
        for i, (kernel, bias) in enumerate(zip(self.kernels, self.biases, strict=True)):
            x = tf.matmul(x if i == 0 else tf.nn.relu(x), self.value(kernel)) + self.value(bias)
        return x


class Conv(Weights):
    """3x3 convolutions on images, every second one with stride 2, and a dense head."""

    def __init__(self, side: int, channels: Sequence[int], classes: int = 10) -> None:
        super().__init__()
        pairs = pairwise(channels)
        self.kernels = [self.add(f"conv_{i}", 3, 3, a, b) for i, (a, b) in enumerate(pairs)]
        self.head = self.add("head", channels[-1], classes)
        signature = [tf.TensorSpec([None, side, side, channels[0]], tf.float32, name="images")]
        self.call = tf.function(self._call, input_signature=signature)

    def _call(self, x: tf.Tensor) -> tf.Tensor:
        for i, kernel in enumerate(self.kernels):
            x = tf.nn.relu(tf.nn.conv2d(x, self.value(kernel), strides=1 + i % 2, padding="SAME"))
        return tf.matmul(tf.reduce_mean(x, [1, 2]), self.value(self.head))


class Transformer(Weights):
    """An embedding and blocks of attention and MLP: for the cost of rewriting, so it is kept plain."""

    def __init__(self, vocabulary: int, width: int, blocks: int) -> None:
        super().__init__()
        self.table = self.add("embeddings", vocabulary, width, scale=0.02)
        shapes = {
            **dict.fromkeys(("query", "key", "value", "output"), (width, width)),
            "up": (width, 4 * width),
            "down": (4 * width, width),
            **dict.fromkeys(("attention_scale", "mlp_scale"), (width,)),
        }
        self.blocks = [
            {name: self.add(f"block_{i}/{name}", *shape, scale=0.02) for name, shape in shapes.items()}
            for i in range(blocks)
        ]
        self.call = tf.function(self._call, input_signature=[tf.TensorSpec([None, None], tf.int32, name="ids")])

    def _call(self, ids: tf.Tensor) -> tf.Tensor:
        x = tf.nn.embedding_lookup(self.table, ids)
        for block in self.blocks:
            y = _normal(x) * block["attention_scale"]
            query, key, value = (tf.matmul(y, block[name]) for name in ("query", "key", "value"))
            weights = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) * float(y.shape[-1]) ** -0.5)
            x += tf.matmul(tf.matmul(weights, value), block["output"])
            x += tf.matmul(tf.nn.gelu(tf.matmul(_normal(x) * block["mlp_scale"], block["up"])), block["down"])
        return x


def _normal(x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-6)


def save(model: Weights, path: Path) -> Path:
    """Writes the model as a SavedModel with one signature."""
    call: Callable[..., Any] = model.call
    tf.saved_model.save(model, str(path), signatures={"serving_default": call})
    return path
