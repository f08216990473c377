"""Calls functions that write variables several times over, and compares after each call all that they have written.

The plain model holds frozen elements by hand (``passes/by_hand``), so whatever trains inside the graph must move alike:
variables, slots, averages and counters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphfreeze.errors import UsageError
from graphfreeze.lowering.holding import Callable, Evidence
from graphfreeze.runtime.verifying.forward import Failure, Outputs, call_once, frozen_moved, poison, words_of
from graphfreeze.runtime.verifying.inputs import Guess, Inputs
from graphfreeze.runtime.verifying.models import Loaded
from graphfreeze.runtime.verifying.tolerance import near_difference
from graphfreeze.savedmodel import NodePath, array_difference

_CALLS = 3
"""At least as often: a slot that is wrong shows in the variable one call later."""


@dataclass(frozen=True, slots=True)
class State:
    """One call's outputs, and what every variable that the function writes holds after it."""

    outputs: Outputs
    frozen: dict[str, NDArray[Any]]
    """Effective values of variables that are frozen in part or whole, by path."""
    bases: dict[str, NDArray[Any]]
    """What stands in the variable itself at its frozen elements, by path."""
    others: dict[NodePath, NDArray[Any]]
    """By place in the plain model."""


Runs = tuple[tuple[State, ...], ...]
"""With the values as they are stored, then poisoned: in both the state before the first call, then after each.

Last, one call on huge inputs; no states where the function does not take them.
"""


def run_inside(
    loaded: Loaded, evidence: Evidence, inputs: Inputs, guesses: dict[str, Guess], fresh: dict[str, NDArray[Any]]
) -> dict[str, Runs | Failure]:
    """By function that writes and can be called: all its states on a fresh load, and what it raises where it does.

    ``fresh`` are the effective values of the poisoned run, by path. What a function writes is put back after its calls.
    """
    writers = [c for c in evidence.callables if c.writes and c.label in guesses]
    stored = {c.label: _run(loaded, c, evidence, inputs, guesses[c.label]) for c in writers}
    # Of both models, though one is not looked at: random ops must have given as many numbers in both.
    huge = {c.label: _run_huge(loaded, c, evidence, inputs, guesses[c.label]) for c in writers}
    poison(loaded, fresh, evidence.holdings)
    found: dict[str, Runs | Failure] = {}
    for c in writers:
        first, poisoned = stored[c.label], _run(loaded, c, evidence, inputs, guesses[c.label])
        if isinstance(first, Failure):
            found[c.label] = first
        elif isinstance(poisoned, Failure):
            found[c.label] = poisoned
        else:
            found[c.label] = (first, poisoned, huge[c.label])
    return found


def _run_huge(
    loaded: Loaded, callable_: Callable, evidence: Evidence, inputs: Inputs, guess: Guess
) -> tuple[State, ...]:
    """One call in which a norm of gradients overflows, so that every update is NaN; not on poison, which is NaN too."""
    states = _run(loaded, callable_, evidence, inputs, replace(guess, huge=True), calls=1)
    return () if isinstance(states, Failure) else states


def _run(
    loaded: Loaded, callable_: Callable, evidence: Evidence, inputs: Inputs, guess: Guess, calls: int = 0
) -> tuple[State, ...] | Failure:
    try:
        function = loaded.function(callable_)
        with loaded.kept(callable_):
            states = [_state(loaded, callable_, evidence, {})]
            for number in range(calls or max(inputs.rounds(function, callable_), _CALLS)):
                outputs = call_once(function, callable_, inputs, number, guess)
                if isinstance(outputs, Failure):
                    return outputs
                states.append(_state(loaded, callable_, evidence, outputs))
    except UsageError:
        raise
    except Exception as error:
        return Failure(words_of(error))
    return tuple(states)


def _state(loaded: Loaded, callable_: Callable, evidence: Evidence, outputs: Outputs) -> State:
    held = {h.source_place for h in evidence.holdings}
    written = {pair[0]: pair[0 if loaded.plain else 1] for pair in callable_.writes if pair[0] not in held}
    others = {source: loaded.at(place) for source, place in written.items()}
    return State(
        outputs,
        {h.path: loaded.effective(h) for h in evidence.holdings},
        {h.path: h.frozen.take(np.asarray(loaded.base(h).numpy())) for h in evidence.holdings},
        {source: np.asarray(v.numpy()) for source, v in others.items() if v.is_initialized()},
    )


def frozen_difference_inside(runs: Runs, callable_: Callable, evidence: Evidence) -> str:
    """What must hold of the rewritten model alone: frozen elements, and slots of what is frozen whole, stay."""
    for first, state in ((states[0], state) for states in runs for state in states[1:]):
        for holding in evidence.holdings:
            if frozen_moved(holding, first.frozen[holding.path], state.frozen[holding.path]):
                return f"it moves frozen elements of '{holding.name}'"
            if array_difference(state.bases[holding.path], first.bases[holding.path]):
                return f"it writes frozen elements of '{holding.name}'"
        for place in callable_.still & state.others.keys():
            words = array_difference(state.others[place], first.others[place])
            if words:
                return f"it moves '{'/'.join(place)}', a slot of what is frozen whole: {words}"
    return ""


def inside_difference(actual: Runs, expected: Runs, callable_: Callable, evidence: Evidence) -> str:
    """How two models first differ."""
    for poisoned, ones, others in zip((False, True), actual[:2], expected[:2], strict=True):
        judged = _Judged(callable_, evidence, poisoned)
        for one, other in zip(ones, others, strict=False):
            words = next(judged.differences(one, other), "")
            if words:
                return words
    return ""


@dataclass(frozen=True, slots=True)
class _Judged:
    callable_: Callable
    evidence: Evidence
    poisoned: bool

    def differences(self, actual: State, expected: State) -> Iterator[str]:
        """All that is not as it should be after one call."""
        if actual.outputs.keys() != expected.outputs.keys():
            yield f"{len(actual.outputs)} outputs instead of {len(expected.outputs)}"
            return
        pairs = [(f"output {k}", actual.outputs[k], v) for k, v in expected.outputs.items()]
        pairs += [(f"'{h.name}'", actual.frozen[h.path], expected.frozen[h.path]) for h in self.evidence.holdings]
        for place, value in expected.others.items():
            if place in self.callable_.still:
                continue
            if place not in actual.others:
                yield f"'{'/'.join(place)}' has no value"
                return
            pairs.append((f"'{'/'.join(place)}'", self._seen(actual.others[place], value), value))
        for name, one, other in pairs:
            words = near_difference(one, other)
            if words:
                yield f"{name}: {words}"

    def _seen(self, value: NDArray[Any], wanted: NDArray[Any]) -> NDArray[Any]:
        """A slot without the NaN that an op, which updates all elements at once, reads in a variable's place.

        Ftrl makes its slot of the variable, at frozen elements too; they mean nothing there.
        """
        alike = [h for h in self.evidence.holdings if h.frozen.shape == value.shape]
        if not self.poisoned or not alike or value.shape != wanted.shape or value.dtype.kind in "OSUbiu":
            return value
        dead = np.logical_or.reduce([h.frozen.to_mask() for h in alike]) & np.isnan(value)
        return np.where(dead, wanted, value)
