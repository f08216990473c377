"""Calls functions that write variables several times over, and compares after each call all that they have written.

The plain model holds frozen elements by hand (``passes/by_hand``), so whatever trains inside the graph must move alike:
variables, slots, averages and counters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphfreeze.lowering.holding import Callable, Evidence
from graphfreeze.runtime.verifying.forward import Failure, Result, call_once, frozen_moved
from graphfreeze.runtime.verifying.inputs import Guess, Inputs
from graphfreeze.runtime.verifying.models import Loaded
from graphfreeze.runtime.verifying.tolerance import near_difference
from graphfreeze.savedmodel import NodePath, array_difference

_CALLS = 3
"""At least as often: a slot that is wrong shows in the variable one call later."""


@dataclass(frozen=True, slots=True)
class State:
    """One call's outputs, and what every variable that the function writes holds after it."""

    outputs: Result
    frozen: dict[str, NDArray[Any]]
    """Effective values of variables that are frozen in part or whole, by path."""
    others: dict[NodePath, NDArray[Any]]
    """By place in the plain model."""


def run_inside(
    loaded: Loaded, callable_: Callable, evidence: Evidence, inputs: Inputs, guess: Guess
) -> tuple[State, ...]:
    """The state before the first call, then after each; everything is put back in the end."""
    function = loaded.function(callable_)
    calls = max(inputs.rounds(function, callable_), _CALLS)
    with loaded.kept(callable_):
        states = [_state(loaded, callable_, evidence, {})]
        for number in range(calls):
            outputs = call_once(function, callable_, inputs, number, guess)
            states.append(_state(loaded, callable_, evidence, outputs))
            if isinstance(outputs, Failure):
                break
    return tuple(states)


def _state(loaded: Loaded, callable_: Callable, evidence: Evidence, outputs: Result) -> State:
    held = {h.source_place for h in evidence.holdings}
    written = {pair[0]: pair[0 if loaded.plain else 1] for pair in callable_.writes if pair[0] not in held}
    others = {source: loaded.at(place) for source, place in written.items()}
    return State(
        outputs,
        {h.path: loaded.effective(h) for h in evidence.holdings},
        {source: np.asarray(v.numpy()) for source, v in others.items() if v.is_initialized()},
    )


def frozen_difference_inside(states: tuple[State, ...], callable_: Callable, evidence: Evidence) -> str:
    """What must hold of the rewritten model alone: frozen elements, and slots of what is frozen whole, stay."""
    first = states[0]
    for state in states[1:]:
        for holding in evidence.holdings:
            if frozen_moved(holding, first.frozen[holding.path], state.frozen[holding.path]):
                return f"it moves frozen elements of '{holding.name}'"
        for place in callable_.still & state.others.keys():
            words = array_difference(state.others[place], first.others[place])
            if words:
                return f"it moves '{'/'.join(place)}', a slot of what is frozen whole: {words}"
    return ""


def inside_difference(
    actual: tuple[State, ...], expected: tuple[State, ...], callable_: Callable, evidence: Evidence
) -> str:
    """How two models first differ."""
    pairs = zip(actual, expected, strict=False)
    return next((w for a, e in pairs for w in _differences(a, e, callable_, evidence) if w), "")


def _differences(actual: State, expected: State, callable_: Callable, evidence: Evidence) -> Iterator[str]:
    if isinstance(actual.outputs, Failure) and not isinstance(expected.outputs, Failure):
        yield f"the rewritten model raises {actual.outputs.why}"
        return
    for holding in evidence.holdings:
        words = near_difference(actual.frozen[holding.path], expected.frozen[holding.path])
        yield f"'{holding.name}': {words}" if words else ""
    for place, value in expected.others.items():
        if place not in callable_.still:
            found = actual.others.get(place)
            words = "has no value" if found is None else near_difference(found, value)
            yield f"'{'/'.join(place)}': {words}" if words else ""
    if isinstance(actual.outputs, Failure) or isinstance(expected.outputs, Failure):
        return
    if actual.outputs.keys() != expected.outputs.keys():
        yield f"{len(actual.outputs)} outputs instead of {len(expected.outputs)}"
        return
    for key, value in expected.outputs.items():
        words = near_difference(actual.outputs[key], value)
        yield f"output {key}: {words}" if words else ""
