"""Models made on the spot, for what the fixtures do not hold: special values, poles, tables of any size."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

Functions = Mapping[str, tuple[Callable[..., Any], list[tf.TensorSpec]]]


def save(target: Path, variables: Mapping[str, Any], functions: Callable[[Any], Functions]) -> Path:
    """A tf.Module with these variables (arrays) and functions of them, each also a signature."""
    model = tf.Module()
    for name, value in variables.items():
        setattr(model, name, tf.Variable(value, name=name))
    signatures = {}
    for name, (body, specs) in functions(model).items():
        traced = tf.function(body, input_signature=specs)
        setattr(model, name, traced)
        signatures[name] = traced
    tf.saved_model.save(model, str(target), signatures=signatures)
    return target


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return (0.5 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def product(target: Path, kernel: Any, columns: int = 3) -> Path:
    """A kernel that is multiplied, looked up and returned as it is, and a head that trains."""
    rows, inner = np.shape(kernel)

    def functions(model: Any) -> Functions:
        return {
            "predict": (
                lambda x: {"y": tf.tanh(x @ model.kernel) @ model.head},
                [tf.TensorSpec([None, rows], tf.float32, "x")],
            ),
            "look_up": (
                lambda ids: {"rows": tf.gather(model.kernel, ids)},
                [tf.TensorSpec([None], tf.int32, "ids")],
            ),
            "itself": (lambda: {"kernel": model.kernel.read_value()}, []),
        }

    return save(target, {"kernel": kernel, "head": numbers(inner, columns, seed=1)}, functions)


def pole(target: Path) -> Path:
    """Column 0 of the kernel feeds log(0): its gradient is NaN, whatever the input; the other columns are ordinary."""

    def predict(model: Any) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
        def body(x: tf.Tensor) -> dict[str, tf.Tensor]:
            y = x @ model.kernel
            return {"pole": tf.math.log(0.0 * y[:, 0]), "square": tf.sqrt(0.0 * y[:, 1]), "y": tf.tanh(y[:, 2:])}

        return body

    return save(
        target,
        {"kernel": numbers(4, 6)},
        lambda model: {"predict": (predict(model), [tf.TensorSpec([None, 4], tf.float32, "x")])},
    )


def table(target: Path, rows: int, width: int = 8) -> Path:
    """A lookup into a table of that many rows, and a head."""
    return save(
        target,
        {"table": numbers(rows, width), "head": numbers(width, 3, seed=1)},
        lambda model: {
            "predict": (
                lambda ids: {"y": tf.reduce_mean(tf.nn.embedding_lookup(model.table, ids), axis=1) @ model.head},
                [tf.TensorSpec([None, None], tf.int32, "ids")],
            )
        },
    )
