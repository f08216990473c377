"""Calls everything callable, with the stored values as they are and poisoned, and compares bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphfreeze.errors import UsageError
from graphfreeze.lowering.holding import Callable, Holding
from graphfreeze.runtime.verifying.inputs import GUESSES, Guess, Inputs, NoInputsError
from graphfreeze.runtime.verifying.models import Loaded
from graphfreeze.savedmodel import array_difference, differing

_NO_NEWS = ("Graph execution error", "Detected at node", "Node: ", "node '", "File ", "Stack trace", "<stack traces")
"""How lines of TensorFlow's errors begin that do not say what is wrong."""

Outputs = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Failure:
    """The call raised."""

    why: str


Result = Outputs | Failure
Results = dict[str, list[Result]]
"""By function, one per round."""


def call_all(
    loaded: Loaded, callables: tuple[Callable, ...], inputs: Inputs, guesses: dict[str, Guess | Failure]
) -> Results:
    """The outputs of every function that can be called, each call with all variables as they were before.

    ``guesses`` says by function how inputs are made that the plain model takes, or why there are none; what it does not
    say yet is tried and put in.
    """
    found: Results = {}
    for callable_ in callables:
        if callable_.label not in guesses:
            guesses[callable_.label] = _choose(loaded, callable_, inputs, found)
            continue
        guess = guesses[callable_.label]
        if isinstance(guess, Guess):
            found[callable_.label] = list(_rounds(loaded, callable_, inputs, guess))
    return found


def _choose(loaded: Loaded, callable_: Callable, inputs: Inputs, found: Results) -> Guess | Failure:
    first: Failure | None = None
    for guess in GUESSES:
        results = list(_rounds(loaded, callable_, inputs, guess))
        failed = [r for r in results if isinstance(r, Failure)]
        if not failed:
            found[callable_.label] = results
            return guess
        first = first or failed[0]
        if not callable_.bounds:
            break
    return first or Failure("nothing to call")


def frozen_moved(holding: Holding, before: NDArray[Any], after: NDArray[Any]) -> bool:
    """Whether a frozen element has other bits."""
    return bool(differing(holding.frozen.take(before), holding.frozen.take(after)).any())


def new_nan(actual: list[Result], expected: list[Result]) -> bool:
    """Whether outputs hold NaN where the plain model's do not, or a call raises."""
    for one, other in zip(actual, expected, strict=False):
        if isinstance(one, Failure):
            return not isinstance(other, Failure)
        if isinstance(other, Failure):
            continue
        for key, value in one.items():
            if value.dtype.kind in "fc" and np.isnan(value).any() and not np.isnan(other[key]).any():
                return True
    return False


def poison(loaded: Loaded, values: dict[str, NDArray[Any]], holdings: tuple[Holding, ...]) -> None:
    """Gives every frozen variable the effective value that ``values`` has under its path."""
    for holding in holdings:
        loaded.poison(holding, values[holding.path])


def _rounds(loaded: Loaded, callable_: Callable, inputs: Inputs, guess: Guess) -> Iterator[Result]:
    try:
        function = loaded.function(callable_)
        rounds = inputs.rounds(function, callable_)
    except NoInputsError as error:
        yield Failure(str(error))
        return
    except Exception as error:
        yield Failure(words_of(error))
        return
    for number in range(rounds):
        with loaded.kept(callable_):
            yield call_once(function, callable_, inputs, number, guess)


def call_once(function: Any, callable_: Callable, inputs: Inputs, number: int, guess: Guess) -> Result:
    """One call, on all variables as they are.

    Raises:
        UsageError: a given input does not fit.
    """
    import tensorflow as tf

    try:
        args, kwargs = inputs.make(function, callable_, number, guess)
        outputs = function(*args, **kwargs)
        leaves = tf.nest.flatten(outputs, expand_composites=True)
        return {str(i): np.asarray(t.numpy()) for i, t in enumerate(leaves) if _has_value(t)}
    except UsageError:
        raise
    except NoInputsError as error:
        return Failure(str(error))
    except Exception as error:
        return Failure(words_of(error))


def _has_value(output: Any) -> bool:
    return hasattr(output, "numpy") and output.dtype.name not in ("resource", "variant")


def words_of(error: BaseException) -> str:
    """One line for what a model raised."""
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith(_NO_NEWS)] or [line for line in lines if line]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def first_difference(actual: list[Result], expected: list[Result]) -> str:
    """How the results of a function first differ; nothing where they are equal in every round."""
    if len(actual) != len(expected):
        why = next((r.why for r in actual if isinstance(r, Failure)), "another number of rounds")
        return f"the rewritten model raises {why}"
    return next((d for one, other in zip(actual, expected, strict=True) if (d := difference(one, other))), "")


def difference(actual: Result, expected: Result) -> str:
    """How two results differ; nothing where they are equal bit for bit (any NaN equals any other)."""
    if isinstance(expected, Failure):
        return ""
    if isinstance(actual, Failure):
        return f"the rewritten model raises {actual.why}"
    if actual.keys() != expected.keys():
        return f"{len(actual)} outputs instead of {len(expected)}"
    found = (array_difference(actual[key], value) for key, value in expected.items())
    return next((f"output {key}: {d}" for key, d in zip(expected, found, strict=True) if d), "")
