"""What the plain model computes, each thing worked out once; a rewritten model is compared to it."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphfreeze.lowering.holding import Callable
from graphfreeze.runtime.verifying.forward import Failure, Results, call_all, first_difference, poison
from graphfreeze.runtime.verifying.gradients import Mode, Rounds, gradients_of
from graphfreeze.runtime.verifying.graph_loader import GraphRun, poisoned_tensors, run_graph
from graphfreeze.runtime.verifying.inputs import Guess, Inputs
from graphfreeze.runtime.verifying.inside import Runs, inside_difference, run_inside
from graphfreeze.runtime.verifying.models import Loaded, fresh_value
from graphfreeze.runtime.verifying.task import Task
from graphfreeze.savedmodel import read_bundle, read_saved_model, write_shadow

Values = dict[str, NDArray[Any]]
"""By path."""


class Plain:
    """The plain model of a task."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.evidence = task.evidence
        self.inputs = Inputs(task.seed, words=self.evidence.words, holdings=self.evidence.holdings, given=task.inputs)
        self.guesses: dict[str, Guess | Failure] = {}
        self._gradients: dict[Mode, dict[str, Rounds]] = {}
        self._graph: GraphRun | Failure | None = None

    def load(self) -> Loaded:
        """A fresh load."""
        return Loaded(self.task.plain, plain=True)

    @cached_property
    def first(self) -> Loaded:
        """The load that forward runs on.

        Raises:
            Exception: whatever TensorFlow raises for a model that it cannot load.
        """
        loaded = self.load()
        found = []
        for callable_ in self.evidence.callables:
            with suppress(LookupError):
                found.append((loaded.function(callable_), callable_))
        self.inputs.check_names(found)
        return loaded

    @cached_property
    def values(self) -> Values:
        """The values of frozen variables as they are stored."""
        return {h.path: np.array(self.first.effective(h)) for h in self.evidence.holdings}

    @cached_property
    def fresh(self) -> Values:
        """The same with other numbers at trainable elements."""
        return {h.path: fresh_value(h, self.values[h.path], self.task.seed) for h in self.evidence.holdings}

    @cached_property
    def forward(self) -> tuple[Results, Results]:
        """All outputs at ``fresh``, then at the stored values."""
        return self._forward(self.first)

    @cached_property
    def _again(self) -> tuple[Results, Results]:
        return self._forward(self.load())

    def _forward(self, loaded: Loaded) -> tuple[Results, Results]:
        poison(loaded, self.fresh, self.evidence.holdings)
        one = call_all(loaded, self.evidence.callables, self.inputs, self.guesses)
        poison(loaded, self.values, self.evidence.holdings)
        return one, call_all(loaded, self.evidence.callables, self.inputs, self.guesses)

    def is_random(self, label: str) -> bool:
        """Whether the plain model differs from itself, on another load."""
        pairs = zip(self._again, self.forward, strict=True)
        return any(first_difference(one[label], other[label]) for one, other in pairs)

    def callable_guesses(self) -> dict[str, Guess]:
        """By function that can be called, how its inputs are made."""
        _ = self.forward
        return {label: g for label, g in self.guesses.items() if isinstance(g, Guess)}

    @cached_property
    def inside(self) -> dict[str, Runs | Failure]:
        """By function that writes and can be called, its states call by call."""
        return self.run_inside(self.load())

    @cached_property
    def _inside_again(self) -> dict[str, Runs | Failure]:
        return self.run_inside(self.load())

    def run_inside(self, loaded: Loaded) -> dict[str, Runs | Failure]:
        """The same for either model."""
        return run_inside(loaded, self.evidence, self.inputs, self.callable_guesses(), self.fresh)

    def inside_is_random(self, callable_: Callable) -> bool:
        """Whether the plain model differs from itself there, on another load."""
        one, other = (found[callable_.label] for found in (self._inside_again, self.inside))
        if isinstance(one, Failure) or isinstance(other, Failure):
            return type(one) is not type(other)
        return bool(inside_difference(one, other, callable_, self.evidence))

    def gradients(self, mode: Mode) -> dict[str, Rounds]:
        """By function that can be called."""
        if mode not in self._gradients:
            guesses, loaded = self.callable_guesses(), self.load()
            self._gradients[mode] = {
                c.label: gradients_of(loaded, c, self.evidence, self.inputs, guesses[c.label], mode)
                for c in self.evidence.callables
                if c.label in guesses
            }
        return self._gradients[mode]

    def gradients_are_random(self, label: str, mode: Mode) -> bool:
        """Whether the plain model's gradients differ from themselves, on another load."""
        (callable_,) = (c for c in self.evidence.callables if c.label == label)
        guess = self.callable_guesses()[label]
        again = gradients_of(self.load(), callable_, self.evidence, self.inputs, guess, mode)
        return not _same(again, self.gradients(mode)[label])

    def graph_run(self, folder: Path) -> GraphRun | Failure:
        """The signatures through the TF1 loader, at ``disk_values``; ``folder`` is for a model with such weights."""
        if self._graph is None:
            target = folder / "plain"
            put = poisoned_tensors(self.evidence, self.disk_values, plain=True)
            write_shadow(read_saved_model(self.task.plain), target, put=put)
            self._graph = run_graph(target, self.evidence)
        return self._graph

    @cached_property
    def disk_values(self) -> Values:
        """As ``fresh``, for a model that perhaps only the TF1 loader loads."""
        bundle = read_bundle(self.task.plain / "variables" / "variables")
        stored = {h.path: np.asarray(bundle.read_tensor(h.source_keys[0])) for h in self.evidence.holdings}
        return {h.path: fresh_value(h, stored[h.path], self.task.seed) for h in self.evidence.holdings}


def _same(one: Rounds, other: Rounds) -> bool:
    if len(one) != len(other):
        return False
    for a, b in zip(one, other, strict=True):
        if isinstance(a, Failure) or isinstance(b, Failure):
            if type(a) is not type(b):
                return False
            continue
        for x, y in zip(a, b, strict=True):
            if (x is None) != (y is None):
                return False
            if x is not None and y is not None and not np.array_equal(x.dense, y.dense, equal_nan=True):
                return False
    return True
