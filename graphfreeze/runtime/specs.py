"""Example inputs as TensorSpecs: what a function is traced for."""

from __future__ import annotations

import re
from textwrap import shorten
from typing import Any

import numpy as np


def call_specs(inputs: Any) -> tuple[Any, ...]:
    """One structure of specs per positional argument; a tuple lists the arguments, anything else is the only one.

    Args:
        inputs: Arrays, tensors, ``tf.TensorSpec``s or whatever has shape and dtype, nested. The first axis of an
            example is the batch, and is left open; a spec is taken as it is.
    """
    import tensorflow as tf

    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    return tuple(tf.nest.map_structure(_spec, a) for a in arguments)


def one_line(error: Exception) -> str:
    """What a failed trace says, on one line: TensorFlow adds a traceback, Keras the arguments."""
    return shorten(" ".join(re.sub(r"\x1b\[\d*m", "", str(error)).split()), 300, placeholder=" ...").rstrip(".")


def _spec(example: Any) -> Any:
    import tensorflow as tf

    if isinstance(example, tf.TypeSpec):
        return example
    if isinstance(example, (tf.SparseTensor, tf.RaggedTensor)):
        return tf.type_spec_from_value(example)
    if not hasattr(example, "shape") or not hasattr(example, "dtype"):
        example = np.asarray(example)
    shape = tf.TensorShape(example.shape)
    if not tf.is_tensor(example) and not isinstance(example, (np.ndarray, np.generic)):
        return tf.TensorSpec(shape, tf.as_dtype(example.dtype))
    return tf.TensorSpec([None, *shape[1:]] if shape.rank else shape, tf.as_dtype(example.dtype))
