"""Gradients of every function at every trainable variable, eagerly or in a ``tf.function``, and how they compare.

The loss is a weighted distance of all float outputs to fixed numbers, so that each element that matters has a gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from graphfreeze.lowering.holding import Callable, Evidence, Holding
from graphfreeze.runtime.verifying.forward import Failure, words_of
from graphfreeze.runtime.verifying.inputs import Guess, Inputs
from graphfreeze.runtime.verifying.models import Loaded
from graphfreeze.runtime.verifying.tolerance import near_difference
from graphfreeze.savedmodel import array_difference
from graphfreeze.selection import Region

Mode = Literal["eager", "function"]
MODES: tuple[Mode, ...] = ("eager", "function")


@dataclass(frozen=True, slots=True)
class Gradient:
    """One gradient as arrays. ``rows`` are the ids of a sparse one, ``None`` for a dense one."""

    dense: NDArray[Any]
    rows: NDArray[np.int64] | None


Gradients = list[Gradient | None]
Rounds = list[Gradients | Failure]
"""One per round; empty where the function has no float output."""


def watched(loaded: Loaded, evidence: Evidence) -> list[Any]:
    """What a tape watches: for each frozen variable the base and what is stored beside it, then all that trains."""
    found = []
    for holding in evidence.holdings:
        found.append(loaded.base(holding))
        found += [] if loaded.plain else [loaded.at(s.place) for s in holding.stored]
    return found + [loaded.other(o) for o in evidence.others]


def gradients_of(
    loaded: Loaded, callable_: Callable, evidence: Evidence, inputs: Inputs, guess: Guess, mode: Mode
) -> Rounds:
    """The gradients of one function, in the order of ``watched``, for each round."""
    import tensorflow as tf

    variables = watched(loaded, evidence)
    function = loaded.function(callable_)

    def compute(args: Any, kwargs: Any) -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for variable in variables:
                tape.watch(variable)
            loss = loss_of(function(*args, **kwargs))
        return [] if loss is None else tape.gradient(loss, variables)

    run = tf.function(compute, autograph=False) if mode == "function" else compute
    found: Rounds = []
    for number in range(inputs.rounds(function, callable_)):
        with loaded.kept(callable_):
            try:
                raw = run(*inputs.make(function, callable_, number, guess))
            except Exception as error:
                found.append(Failure(words_of(error)))
                break
        if not raw:
            return []
        found.append([_plain(g, v) for g, v in zip(raw, variables, strict=True)])
    return found


def loss_of(outputs: Any) -> Any:
    """A float64 scalar that depends on every element of every float output; None where there is none."""
    import tensorflow as tf

    total = None
    for shift, output in enumerate(tf.nest.flatten(outputs, expand_composites=True)):
        dtype = getattr(output, "dtype", None)
        if dtype is None or not (dtype.is_floating or dtype.is_complex):
            continue
        parts = [tf.math.real(output), tf.math.imag(output)] if dtype.is_complex else [output]
        for part in parts:
            flat = tf.reshape(tf.cast(part, tf.float64), [-1])
            place = tf.cast(tf.range(tf.size(flat)), tf.float64) + 7.0 * shift
            target = 0.2 * tf.sin(3.0 * place) + 0.15
            weight = 1.0 + 0.4 * tf.cos(1.7 * place)
            distance = tf.reduce_sum(weight * (flat - target) ** 2) / tf.cast(tf.maximum(tf.size(flat), 1), tf.float64)
            total = distance if total is None else total + distance
    return total


def _plain(gradient: Any, variable: Any) -> Gradient | None:
    import tensorflow as tf

    if gradient is None:
        return None
    if not isinstance(gradient, tf.IndexedSlices):
        return Gradient(np.asarray(gradient.numpy()), None)
    shape = list(np.asarray(variable.numpy()).shape)
    # In order of occurrence, as TensorFlow adds them.
    total = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, shape[0])
    rows = np.unique(np.asarray(gradient.indices.numpy(), np.int64))
    return Gradient(np.asarray(total.numpy()).reshape(shape), rows)


def gradient_difference(actual: Rounds, expected: Rounds, callable_: Callable, evidence: Evidence) -> str:
    """The first difference between a function's gradients in the two models."""
    for held, plain in zip(actual, expected, strict=False):
        if isinstance(plain, Failure):
            return ""
        if isinstance(held, Failure):
            return f"the rewritten model raises {held.why}"
        found = next(_differences(held, plain, callable_, evidence), "")
        if found:
            return found
    if len(actual) < len(expected):
        return "the rewritten model has no float output"
    return ""


def frozen_difference(rounds: Rounds, evidence: Evidence) -> str:
    """What holds even where there is nothing to compare with: no gradient at frozen elements."""
    for gradients in rounds:
        if isinstance(gradients, Failure):
            continue
        given = iter(gradients)
        for holding in evidence.holdings:
            base, stored = next(given), [next(given) for _ in holding.stored]
            for words in () if holding.by_guards else _of_frozen(holding, base, stored):
                return f"'{holding.name}': {words}"
    return ""


def _differences(held: Gradients, plain: Gradients, callable_: Callable, evidence: Evidence) -> Iterator[str]:
    actual, expected = iter(held), iter(plain)
    for holding in evidence.holdings:
        wanted, base = next(expected), next(actual)
        stored = [next(actual) for _ in holding.stored]
        exact = callable_.uses.get(holding.path, 0) <= 1
        for words in _of_holding(holding, wanted, base, stored, exact=exact):
            yield f"'{holding.name}': {words}"
    for other in evidence.others:
        wanted, found = next(expected), next(actual)
        exact = callable_.uses.get(other.path, 0) <= 1
        words = _of_other(found, wanted, exact=exact)
        if words:
            yield f"'{other.name}': {words}"


def _of_other(found: Gradient | None, wanted: Gradient | None, *, exact: bool) -> str:
    like = wanted or found
    if like is None:
        return ""
    if found is not None and wanted is not None and (found.rows is None) != (wanted.rows is None):
        return "a sparse gradient turned dense" if found.rows is None else "a dense gradient turned sparse"
    zeros = np.zeros_like(like.dense)
    words = _compare(zeros if found is None else found.dense, zeros if wanted is None else wanted.dense, exact=exact)
    if words or found is None or wanted is None or found.rows is None or wanted.rows is None:
        return words
    return "" if np.array_equal(found.rows, wanted.rows) else "other rows in the sparse gradient"


def _of_holding(
    holding: Holding, wanted: Gradient | None, base: Gradient | None, stored: Sequence[Gradient | None], *, exact: bool
) -> Iterator[str]:
    if holding.by_guards:
        words = _of_other(base, wanted, exact=exact)
        yield from [words] if words else []
        return
    yield from _of_frozen(holding, base, stored)
    if holding.base_trains:
        yield from _of_part(holding.trainable, wanted, base, stored_small=False, exact=exact)
    for part, found in zip(holding.stored, stored, strict=True):
        if part.trainable:
            yield from _of_part(part.region, wanted, found, stored_small=True, exact=exact)


def _of_frozen(holding: Holding, base: Gradient | None, stored: Sequence[Gradient | None]) -> Iterator[str]:
    if base is not None:
        dead = holding.frozen.take(base.dense) if holding.base_trains else base.dense
        if np.any(dead != 0):
            yield "a gradient reaches frozen elements"
    for part, found in zip(holding.stored, stored, strict=True):
        if not part.trainable and found is not None and np.any(found.dense != 0):
            yield f"a gradient reaches the frozen copy '{part.name}'"


def _of_part(
    region: Region, wanted: Gradient | None, found: Gradient | None, *, stored_small: bool, exact: bool
) -> Iterator[str]:
    """What trains: the plain model's gradient there, sparse with the rows that were looked up where that is sparse."""
    if region.is_empty:
        return
    if wanted is None:
        if found is not None and np.any(found.dense != 0):
            yield "it has a gradient, and none in the plain model"
        return
    expected = region.take(wanted.dense)
    if found is None:
        if np.any(expected != 0):
            yield "no gradient reaches what should train"
        return
    actual = found.dense if stored_small else region.take(found.dense)
    words = _compare(actual, expected, exact=exact)
    if words:
        yield f"the gradient at trainable elements is another: {words}"
    if wanted.rows is None:
        return
    if found.rows is None:
        yield "a sparse gradient turned dense"
        return
    live = np.flatnonzero(region.to_mask().reshape(region.shape[0], -1).any(axis=1))
    rows = np.intersect1d(wanted.rows, live)
    if not np.array_equal(found.rows, np.searchsorted(live, rows) if stored_small else rows):
        yield "the sparse gradient has rows of other ids than the trainable ones that were looked up"


def _compare(actual: NDArray[Any], expected: NDArray[Any], *, exact: bool) -> str:
    if not exact:
        return near_difference(actual, expected)
    return "" if np.array_equal(actual, expected) else array_difference(actual, expected)


def reached(rounds: Rounds, evidence: Evidence) -> list[bool]:
    """For each frozen variable, then each other one, whether a gradient reaches what trains of it."""
    found = [False] * (len(evidence.holdings) + len(evidence.others))
    for gradients in rounds:
        if isinstance(gradients, Failure):
            continue
        given = iter(gradients)
        for i, holding in enumerate(evidence.holdings):
            base, stored = next(given), [next(given) for _ in holding.stored]
            parts = [g for s, g in zip(holding.stored, stored, strict=True) if s.trainable]
            found[i] |= any(g is not None for g in (*parts, *([base] if holding.base_trains else ())))
        for i in range(len(evidence.others)):
            found[len(evidence.holdings) + i] |= next(given) is not None
    return found
