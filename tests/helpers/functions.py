"""Every function and signature of a loaded model, called with inputs made from its own specs.

Used to compare two models without knowing what they are: same names, same inputs, same bits.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tests.helpers.variables import Array, variables_by_path, walk

WORDS = (b"the", b"cat", b"zebra", b"")
UNKNOWN_DIMENSION = 2
IDS = (range(3), range(1, 2), range(6), range(6, 12))
"""Integers may be ids or branches: each of a small table counts, and what lies beyond it fails in both models."""


class NoInputsError(Exception):
    """This function takes something that cannot be made from its spec."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The call raised; two models are equal if both raise this."""

    error: str


def functions_of(loaded: Any) -> dict[str, Any]:
    """Every concrete function under the root, by path and number: 'block/__call__[0]'."""
    found: dict[str, Any] = {}
    for path, thing in walk(loaded):
        if path == "signatures" or path.startswith("signatures/"):
            continue
        for number, function in enumerate(getattr(thing, "concrete_functions", None) or ()):
            found[f"{path}[{number}]"] = function
    return found


def signatures_of(loaded: Any) -> dict[str, Any]:
    return {f"signature {name}": loaded.signatures[name] for name in getattr(loaded, "signatures", ())}


def inputs_for(function: Any, seed: int = 0, ids: range = IDS[0]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments by the function's own specs; the same for equal specs and seed."""
    generator = np.random.default_rng(seed)
    args, kwargs = function.structured_input_signature
    made_args, made_kwargs = tf.nest.map_structure(
        lambda leaf: _make(leaf, generator, ids), (args, dict(sorted(kwargs.items())))
    )
    return tuple(made_args), made_kwargs


def outputs_of(loaded: Any, seed: int = 0, skip: frozenset[str] = frozenset()) -> dict[str, dict[str, Array] | Failure]:
    """The outputs of everything callable, each call with all variables as they were before."""
    results: dict[str, dict[str, Array] | Failure] = {}
    for name, function in {**functions_of(loaded), **signatures_of(loaded)}.items():
        if name in skip or name.startswith("graphfreeze/"):
            continue
        for ids in IDS if _takes_integers(function) else IDS[:1]:
            with variables_kept(loaded):
                label = name if ids == IDS[0] else f"{name}, integers from {ids.start} to {ids.stop}"
                results[label] = call(function, seed, ids)
    return results


def _takes_integers(function: Any) -> bool:
    leaves = tf.nest.flatten(function.structured_input_signature)
    return any(isinstance(leaf, tf.TensorSpec | tf.SparseTensorSpec) and leaf.dtype.is_integer for leaf in leaves)


def call(function: Any, seed: int = 0, ids: range = IDS[0]) -> dict[str, Array] | Failure:
    """One function's outputs as arrays by flat position or key."""
    try:
        args, kwargs = inputs_for(function, seed, ids)
        outputs = function(*args, **kwargs)
    except NoInputsError as error:
        return Failure(f"not called: {error}")
    except (tf.errors.OpError, TypeError, ValueError, AttributeError) as error:
        return Failure(type(error).__name__)
    return dict(_flatten("", outputs))


@contextmanager
def variables_kept(loaded: Any) -> Iterator[None]:
    """Puts every variable back to its value afterwards, for functions that write."""
    before = [(v, v.read_value()) for v in variables_by_path(loaded).values() if v.is_initialized()]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def _make(leaf: Any, generator: np.random.Generator, ids: range) -> Any:
    if isinstance(leaf, tf.SparseTensorSpec):
        indices = tf.constant([[0] * leaf.shape.rank, [1] + [0] * (leaf.shape.rank - 1)], tf.int64)
        values = _tensor([2], leaf.dtype, generator, ids)
        return tf.SparseTensor(indices, values, tf.constant(_sizes(leaf.shape), tf.int64))
    if isinstance(leaf, tf.TensorSpec):
        return _tensor(_sizes(leaf.shape), leaf.dtype, generator, ids)
    if isinstance(leaf, tf.TypeSpec):
        raise NoInputsError(f"argument of type {type(leaf).__name__}")
    return leaf


def _sizes(shape: tf.TensorShape) -> list[int]:
    if shape.rank is None:
        return [UNKNOWN_DIMENSION]
    return [UNKNOWN_DIMENSION if size is None else size for size in shape.as_list()]


def _tensor(sizes: list[int], dtype: tf.DType, generator: np.random.Generator, ids: range) -> tf.Tensor:
    if dtype == tf.string:
        return tf.constant(generator.choice(np.array(WORDS, dtype=object), sizes), tf.string)
    if dtype == tf.bool:
        return tf.constant(generator.integers(0, 2, sizes).astype(bool))
    if dtype.is_integer:
        return tf.cast(tf.constant(np.resize(generator.permutation(ids), sizes)), dtype)
    if dtype.is_floating or dtype.is_complex:
        return tf.cast(tf.constant(generator.standard_normal(sizes)), dtype)
    raise NoInputsError(f"argument of dtype {dtype.name}")


def _flatten(path: str, outputs: Any) -> Iterator[tuple[str, Array]]:
    if isinstance(outputs, Mapping):
        for key in sorted(outputs):
            yield from _flatten(f"{path}/{key}", outputs[key])
    elif isinstance(outputs, list | tuple):
        for number, item in enumerate(outputs):
            yield from _flatten(f"{path}/{number}", item)
    elif outputs is None or isinstance(outputs, tf.Operation):
        return
    else:
        yield (
            path,
            np.asarray(
                tf.convert_to_tensor(outputs).numpy()
                if not isinstance(outputs, tf.RaggedTensor)
                else outputs.to_tensor().numpy()
            ),
        )
