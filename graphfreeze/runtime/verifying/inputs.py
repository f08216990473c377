"""Inputs for any function, made from what it says it takes, or taken from a file.

Nobody has to know the model: shapes and dtypes come from the signature, the range of ids from the graph (see
``graph/ranges``), ids of frozen and of trainable rows in turn. Several rounds give floats of both signs, every branch
and further ids. What fits no guess is tried with other sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from graphfreeze.errors import InputOutputError, UsageError
from graphfreeze.graph.examples import Features
from graphfreeze.lowering.holding import Callable, Holding

ROUNDS = 3
_MOST_ROUNDS = 8
_MOST_ROWS = 16
_FEW = 3
_SMALL_TABLE = 1 << 20


def read_samples(samples: str | PathLike[str] | Mapping[str, Any] | None) -> dict[str, NDArray[Any]]:
    """Inputs by name, from a mapping or a ``.npz`` file.

    Raises:
        InputOutputError: the file is missing, or no file of arrays.
        UsageError: it holds one array, without a name.
    """
    if samples is None:
        return {}
    if isinstance(samples, Mapping):
        return {name: np.asarray(value) for name, value in samples.items()}
    try:
        file = np.load(samples, allow_pickle=False)
        if not isinstance(file, np.ndarray):
            with file:
                return {name: file[name] for name in file.files}
    except OSError as error:
        raise InputOutputError(f"Cannot read the inputs '{samples}': {error.strerror or error}") from error
    except (ValueError, EOFError, BadZipFile) as error:
        raise InputOutputError(
            f"'{samples}' is no file of arrays ({str(error).splitlines()[0] if str(error) else type(error).__name__}). "
            "Write it with: numpy.savez(FILE, NAME=array)"
        ) from error
    raise UsageError(f"'{samples}' holds one array without a name. Write it with: numpy.savez(FILE, NAME=array)")


class NoInputsError(Exception):
    """The function takes something that cannot be made from its signature."""


@dataclass(frozen=True, slots=True)
class Guess:
    """Sizes of unknown dimensions (None: enough to name every id), and the ids where the graph sets no bound."""

    size: int | None = None
    ids: range | None = None
    words: bool = True
    """Whether strings are words; else they are empty, which is also an example without features."""
    huge: bool = False
    """Whether floats are near the end of their range, so that a norm of gradients overflows."""


_HUGE = 0.8
"""A power of the greatest number: its square is beyond all numbers, and it leaves room for a factor."""

GUESSES = (
    Guess(),
    Guess(ids=range(_FEW)),
    Guess(ids=range(1, 2)),
    Guess(words=False),
    Guess(1),
    Guess(8),
    Guess(32),
    Guess(224),
)
"""In the order in which they are tried; the first that the plain model takes is kept."""


class Inputs:
    """Makes the inputs of all functions: the same for the same seed, function, round and guess."""

    def __init__(
        self,
        seed: int = 0,
        *,
        words: Sequence[str] = (),
        holdings: Sequence[Holding] = (),
        given: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self.seed = seed
        self.words = [*(w.encode() for w in words), b"no word of the model", b""]
        self.given = given or {}
        self.rows: dict[int, NDArray[np.int64]] = {}
        for holding in holdings:
            if len(holding.frozen.shape) > 1 and holding.frozen.size:
                self.rows.setdefault(holding.frozen.shape[0], _in_turn(holding))

    def rounds(self, function: Any, callable_: Callable) -> int:
        """How many rounds are worth while."""
        leaves = list(_leaves(function, callable_))
        if not leaves or all(self._given(name, callable_) is not None for name, _, _ in leaves):
            return 1
        branches = [b for _, spec, bs in leaves for b in bs if b is not None and spec.shape.rank == 0]
        return min(max([ROUNDS, *branches]), _MOST_ROUNDS)

    def make(self, function: Any, callable_: Callable, number: int, guess: Guess = GUESSES[0]) -> tuple[Any, Any]:
        """Positional and keyword arguments for round ``number``.

        Raises:
            NoInputsError: it takes something that is no tensor of numbers or strings.
            UsageError: a given input does not fit.
        """
        import tensorflow as tf

        leaves = iter(list(_leaves(function, callable_)))
        generator = np.random.default_rng([self.seed, number])
        parsed = iter(_examples(function, callable_))
        rows = self._rows(function, callable_, guess)

        def build(spec: Any) -> Any:
            if not isinstance(spec, tf.TypeSpec):
                return spec
            name, _, bounds = next(leaves)
            features = next(parsed, None)
            given = self._given(name, callable_)
            if given is not None:
                return _fitted(given, spec, name, callable_)
            maker = _Maker(self, generator, number, guess, rows)
            return maker.make(spec, bounds) if features is None else maker.examples(spec, features)

        args, kwargs = function.structured_input_signature
        made = tf.nest.map_structure(build, (args, dict(sorted(kwargs.items()))))
        return made[0], made[1]

    def check_names(self, functions: Sequence[tuple[Any, Callable]]) -> None:
        """Refuses a given input that nothing takes.

        Raises:
            UsageError: names the key, and those that are near.
        """
        known: dict[str, None] = {}
        for function, callable_ in functions:
            with suppress(NoInputsError):
                for name, _, _ in _leaves(function, callable_):
                    known |= {name: None, f"{name}@{_short(callable_)}": None}
        for key in self.given:
            if key not in known:
                near = get_close_matches(key, known, 3) or list(known)[:6]
                raise UsageError(
                    f"The inputs hold '{key}', but no function of the model takes it. Keys are names of inputs, or "
                    f"NAME@SIGNATURE: {', '.join(map(repr, near))}"
                )

    def _given(self, name: str, callable_: Callable) -> NDArray[Any] | None:
        return self.given.get(f"{name}@{_short(callable_)}", self.given.get(name))

    def _rows(self, function: Any, callable_: Callable, guess: Guess) -> int:
        """The size of an unknown first dimension: that of a given input, else enough for every id."""
        needed = [2]
        for name, spec, bounds in _leaves(function, callable_):
            shape = _shape(spec)
            given = self._given(name, callable_)
            if given is not None and given.ndim and shape and shape[0] is None:
                return int(given.shape[0])
            if shape and shape[0] is None and bounds and bounds[0] is not None:
                rest = int(np.prod([2 if d is None else d for d in shape[1:]])) or 1
                needed.append(min(-(-bounds[0] // rest), _MOST_ROWS))
        return max(needed) if guess.size is None else guess.size


@dataclass(frozen=True, slots=True)
class _Maker:
    inputs: Inputs
    generator: np.random.Generator
    number: int
    guess: Guess
    rows: int

    def make(self, spec: Any, bounds: tuple[int | None, ...]) -> Any:
        import tensorflow as tf

        if isinstance(spec, tf.SparseTensorSpec):
            return self._sparse(spec, bounds)
        if not isinstance(spec, tf.TensorSpec):
            raise NoInputsError(f"nobody can make an input of type {type(spec).__name__}")
        shape = _shape(spec)
        sizes = [2] if shape is None else self._sizes(shape)
        return tf.constant(self._values(sizes, spec.dtype, bounds[0] if bounds else None), spec.dtype)

    def examples(self, spec: Any, features: Features) -> Any:
        """Serialized protos with these features."""
        import tensorflow as tf

        shape = _shape(spec)
        sizes = [2] if shape is None else self._sizes(shape)
        made = [make_example(features, self.generator, self.inputs.words) for _ in range(int(np.prod(sizes)))]
        return tf.constant(np.array(made, dtype=object).reshape(sizes), tf.string)

    def _sparse(self, spec: Any, bounds: tuple[int | None, ...]) -> Any:
        import tensorflow as tf

        sizes = self._sizes(_shape(spec) or (None, None))
        indices = np.argwhere(np.ones([min(s, 4) for s in sizes], np.bool_))
        bound = bounds[1] if len(bounds) > 1 else None
        values = tf.constant(self._values([len(indices)], spec.dtype, bound), spec.dtype)
        return tf.SparseTensor(tf.constant(indices, tf.int64), values, tf.constant(sizes, tf.int64))

    def _sizes(self, shape: tuple[int | None, ...]) -> list[int]:
        inner = self.guess.size or 2
        return [(self.rows if i == 0 else inner) if d is None else d for i, d in enumerate(shape)]

    def _values(self, sizes: list[int], dtype: Any, bound: int | None) -> Any:
        count = int(np.prod(sizes))
        place = np.arange(count) + self.number * count
        if dtype.name == "string":
            words = np.array(self.inputs.words if self.guess.words else [b""], dtype=object)
            return self.generator.permutation(words[place % len(words)]).reshape(sizes)
        if dtype.is_bool:
            return ((place + self.number) % 2 == 0).reshape(sizes)
        if dtype.is_integer:
            pool = self._ids(bound)
            return pool[place % len(pool)].reshape(sizes).astype(dtype.as_numpy_dtype)
        if not (dtype.is_floating or dtype.is_complex):
            raise NoInputsError(f"nobody can make an input of dtype {dtype.name}")
        values = self.generator.standard_normal(sizes)
        if self.number % ROUNDS:
            values = np.abs(values) * (1 if self.number % ROUNDS == 1 else -1)
        if self.guess.huge:
            values *= float(dtype.real_dtype.max) ** _HUGE
        return values.astype(dtype.as_numpy_dtype)

    def _ids(self, bound: int | None) -> NDArray[np.int64]:
        if self.guess.ids is not None or bound is None or bound < 1:
            return np.asarray(self.guess.ids or range(_FEW), np.int64)
        if bound in self.inputs.rows:
            return self.inputs.rows[bound]
        generator = np.random.default_rng(self.inputs.seed)
        return generator.permutation(bound) if bound <= _SMALL_TABLE else generator.integers(0, bound, _SMALL_TABLE)


def _in_turn(holding: Holding) -> NDArray[np.int64]:
    """Row numbers of a variable: one that holds something trainable, one that is frozen, and so on."""
    generator = np.random.default_rng(holding.frozen.shape[0])
    live = holding.trainable.to_mask().reshape(holding.frozen.shape[0], -1).any(axis=1)
    one, other = (generator.permutation(np.flatnonzero(rows)) for rows in (live, ~live))
    if not len(one) or not len(other):
        return np.concatenate([one, other])
    count = max(len(one), len(other))
    return np.stack([np.resize(one, count), np.resize(other, count)], axis=1).reshape(-1)


def _leaves(function: Any, callable_: Callable) -> Iterator[tuple[str, Any, tuple[int | None, ...]]]:
    """(name, spec, bounds) of each tensor argument, in the order of the function's arguments."""
    import tensorflow as tf

    if function.structured_input_signature is None:
        raise NoInputsError("what it takes was not saved with it")
    args, kwargs = function.structured_input_signature
    kwargs = dict(sorted(kwargs.items()))
    names = [*(None for _ in tf.nest.flatten(args)), *_keys(kwargs)]
    position = 0
    for name, spec in zip(names, [*tf.nest.flatten(args), *tf.nest.flatten(kwargs)], strict=True):
        if isinstance(spec, tf.TypeSpec):
            count = len(tf.nest.flatten(spec, expand_composites=True))
            bounds = callable_.bounds[position : position + count]
            yield name or getattr(spec, "name", None) or f"argument {position}", spec, bounds
            position += count


def _examples(function: Any, callable_: Callable) -> Iterator[Features | None]:
    """For each of ``_leaves``, the features that are parsed out of it."""
    import tensorflow as tf

    position = 0
    for _, spec, _ in _leaves(function, callable_):
        yield callable_.examples[position] if position < len(callable_.examples) else None
        position += len(tf.nest.flatten(spec, expand_composites=True))


def make_example(features: Features, generator: np.random.Generator, words: Sequence[bytes]) -> bytes:
    """One serialized ``tf.Example``: as many values as each feature needs, one or two where it may have any number."""
    import tensorflow as tf

    made: dict[str, Any] = {}
    for feature in features:
        count = int(generator.integers(1, 3)) if feature.shape is None else _count(feature.shape)
        made[feature.name.decode()] = _feature(feature.dtype, count, generator, words)
    proto = tf.train.Example(features=tf.train.Features(feature=made))
    return bytes(proto.SerializeToString(deterministic=True))


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod([2 if d < 0 else d for d in shape]))


def _feature(dtype: str, count: int, generator: np.random.Generator, words: Sequence[bytes]) -> Any:
    import tensorflow as tf

    if dtype == "string":
        value = [words[int(i)] for i in generator.integers(0, len(words), count)]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
    if dtype == "int64":
        return tf.train.Feature(int64_list=tf.train.Int64List(value=generator.integers(0, _FEW, count)))
    return tf.train.Feature(float_list=tf.train.FloatList(value=generator.standard_normal(count)))


def _keys(kwargs: Mapping[str, Any]) -> Iterator[str | None]:
    import tensorflow as tf

    for key, value in kwargs.items():
        leaves = tf.nest.flatten(value)
        yield from [key] if len(leaves) == 1 else [None] * len(leaves)


def _shape(spec: Any) -> tuple[int | None, ...] | None:
    return None if spec.shape.rank is None else tuple(spec.shape.as_list())


def _short(callable_: Callable) -> str:
    return callable_.label.removeprefix("signature ")


def _fitted(given: NDArray[Any], spec: Any, name: str, callable_: Callable) -> Any:
    """A given array as the tensor that the function takes.

    Raises:
        UsageError: its shape or dtype does not fit.
    """
    import tensorflow as tf

    where = f"Input '{name}' of '{_short(callable_)}'"
    if not isinstance(spec, tf.TensorSpec):
        raise UsageError(f"{where} takes a {type(spec).__name__}, which cannot be read from a file of arrays")
    if not spec.shape.is_compatible_with(given.shape):
        raise UsageError(f"{where} takes shape {spec.shape}, the file has {list(given.shape)}")
    if spec.dtype.name == "string" or given.dtype.kind in "SU":
        if spec.dtype.name != "string" or given.dtype.kind not in "SU":
            raise UsageError(f"{where} takes {spec.dtype.name}, the file has {given.dtype}")
        return tf.constant(given.astype(str) if given.dtype.kind == "U" else given.astype(object), spec.dtype)
    wanted = np.dtype(spec.dtype.as_numpy_dtype)
    with np.errstate(all="ignore"):
        cast = given.astype(wanted)
    if given.dtype.kind in "iub" and not np.array_equal(cast.astype(given.dtype), given):
        raise UsageError(f"{where} takes {spec.dtype.name}, and values of {given.dtype} in the file do not fit it")
    if given.dtype.kind not in "iub" and not np.can_cast(given.dtype, wanted, "same_kind"):
        raise UsageError(f"{where} takes {spec.dtype.name}, the file has {given.dtype}")
    return tf.constant(cast)
