"""All checks in their order, the cheap ones first; each says what it found, and nothing is left out silently."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from graphfreeze.errors import UsageError
from graphfreeze.lowering.holding import Callable as Callable_
from graphfreeze.runtime.optimizers import Make
from graphfreeze.runtime.verifying.forward import (
    Failure,
    Result,
    Results,
    call_all,
    first_difference,
    new_nan,
    poison,
    words_of,
)
from graphfreeze.runtime.verifying.gradients import (
    MODES,
    Mode,
    Rounds,
    frozen_difference,
    gradient_difference,
    gradients_of,
    reached,
)
from graphfreeze.runtime.verifying.graph_loader import poisoned_tensors, run_graph
from graphfreeze.runtime.verifying.inputs import Guess
from graphfreeze.runtime.verifying.inside import Runs, frozen_difference_inside, inside_difference
from graphfreeze.runtime.verifying.models import Loaded
from graphfreeze.runtime.verifying.optimizers import make_optimizers
from graphfreeze.runtime.verifying.plain import Plain
from graphfreeze.runtime.verifying.results import Finding, Status, TrainingResult
from graphfreeze.runtime.verifying.task import Task
from graphfreeze.runtime.verifying.training import Moves, smallest_cover, train
from graphfreeze.savedmodel import read_saved_model, write_shadow

RANDOM = "random: the plain model gives something else at every run, so it was not compared"
GRAPH = "TF1 loader"
INSIDE = "training inside"


@dataclass(slots=True)
class Found:
    """Everything that the checks have found so far."""

    findings: list[Finding] = field(default_factory=list)
    training: list[TrainingResult] = field(default_factory=list)
    moves: list[dict[str, Moves]] = field(default_factory=list)
    reached: dict[str, list[bool]] = field(default_factory=dict)
    """By function: for each frozen variable, then each other one, whether a gradient reaches what trains of it."""


class Run:
    """The checks of one rewritten model; each yields its findings and may be run alone."""

    def __init__(self, task: Task, plain: Plain | None = None) -> None:
        self.task, self.evidence = task, task.evidence
        self.plain = plain or Plain(task)
        self.found = Found()
        self._hasty = False

    @property
    def checks(self) -> dict[str, Callable[[], Iterator[Finding]]]:
        """By name, in order."""
        return {
            "messages": self.messages,
            "loading": self.loading,
            "poison": lambda: self.forward("poison"),
            "forward": lambda: self.forward("forward"),
            INSIDE: self.inside,
            "gradients (eager)": lambda: self.gradients("eager"),
            "gradients (function)": lambda: self.gradients("function"),
            GRAPH: self.graph_loader,
            "training": self.training,
        }

    def all(self, tell: Callable[[str], None] = lambda _: None) -> Found:
        """Runs every check."""
        for name, check in self.checks.items():
            tell(name)
            self.found.findings += check()
        return self.found

    def first_failure(self, order: Sequence[str] = ()) -> Finding | None:
        """The first failure, with no check after it; checks that ``order`` names run first."""
        checks, self._hasty = self.checks, True
        for name in [*order, *(n for n in checks if n not in order)]:
            for finding in checks[name]():
                if finding.status == "failed":
                    return finding
        return None

    def messages(self) -> Iterator[Finding]:
        """What the messages say of flags, lists and keys, and the frozen values."""
        for problem in self.evidence.problems:
            yield Finding(problem.check, problem.where, "failed", problem.what)

    @cached_property
    def unloadable(self) -> str:
        """Why TensorFlow 2 does not load the plain model; nothing where it does."""
        try:
            _ = self.plain.first
        except UsageError:
            raise
        except Exception as error:
            return words_of(error)
        return ""

    @cached_property
    def _loaded(self) -> Loaded | Failure:
        try:
            return Loaded(self.task.rewritten, plain=False)
        except Exception as error:
            return Failure(words_of(error))

    def loading(self) -> Iterator[Finding]:
        """Whether it loads, and lists what trains."""
        if self.unloadable:
            yield Finding("loading", "", "not run", f"TensorFlow 2 does not load the plain model: {self.unloadable}")
            return
        if isinstance(self._loaded, Failure):
            yield Finding(
                "loading", "", "failed", f"the plain model loads, the rewritten one raises {self._loaded.why}"
            )
            return
        try:
            wanted = [self._loaded.at(place) for place in self.evidence.trains]
            holder = self._loaded.root.graphfreeze
            holder = getattr(holder.phases, self.evidence.phase) if self.evidence.phase else holder
            listed = list(holder.info.concrete_functions[0].trainable_variables)
        except Exception as error:
            if self.evidence.listed:
                yield Finding("loading", self._info, "failed", f"does not list what trains: {words_of(error)}")
            return
        if [id(v) for v in listed] != [id(v) for v in wanted]:
            names = ", ".join(f"'{v.name}'" for v in listed)
            yield Finding("loading", self._info, "failed", f"lists other variables than those that train: {names}")

    @property
    def _info(self) -> str:
        return f"graphfreeze.phases.{self.evidence.phase}.info" if self.evidence.phase else "graphfreeze.info"

    def _outputs(self, name: str) -> Results:
        """What all functions give after ``poison`` or ``forward``."""
        assert isinstance(self._loaded, Loaded)
        _ = self.plain.forward
        poison(self._loaded, self.plain.fresh if name == "poison" else self.plain.values, self.evidence.holdings)
        return call_all(self._loaded, self.evidence.callables, self.plain.inputs, dict(self.plain.guesses))

    def forward(self, name: str) -> Iterator[Finding]:
        """Every function and signature, bit for bit."""
        if self.unloadable or isinstance(self._loaded, Failure):
            return
        try:
            actual = self._outputs(name)
        except UsageError:
            raise
        except Exception as error:
            yield Finding(name, "", "failed", f"the values cannot be put in: {words_of(error)}")
            return
        expected = self.plain.forward[name == "forward"]
        for callable_ in self.evidence.callables:
            label = callable_.label
            guess = self.plain.guesses[label]
            if isinstance(guess, Failure):
                yield Finding(name, label, "not run", guess.why)
                continue
            words = first_difference(actual[label], expected[label])
            if words and self.plain.is_random(label):
                yield Finding(name, label, "not run", RANDOM)
            elif words and callable_.apart and not new_nan(actual[label], expected[label]):
                yield Finding(name, label, "not run", callable_.apart)
            else:
                yield Finding(name, label, "failed" if words else "ok", words)

    def inside(self) -> Iterator[Finding]:
        """No function moves a frozen element, and what else functions write is what it should be."""
        writers = [c for c in self.evidence.callables if c.writes]
        if self.unloadable or isinstance(self._loaded, Failure) or not writers:
            return
        expected, actual = self.plain.inside, self.plain.run_inside(Loaded(self.task.rewritten, plain=False))
        for callable_ in writers:
            label = callable_.label
            if label not in expected:
                yield Finding(INSIDE, label, "not run", "it cannot be called")
            else:
                yield self._inside(callable_, actual[label], expected[label])

    def _inside(self, callable_: Callable_, actual: Runs | Failure, expected: Runs | Failure) -> Finding:
        label = callable_.label
        if isinstance(expected, Failure):
            return Finding(INSIDE, label, "not run", f"the plain model raises {expected.why}")
        if isinstance(actual, Failure):
            return Finding(INSIDE, label, "failed", f"the rewritten model raises {actual.why}")
        words = frozen_difference_inside(actual, callable_, self.evidence)
        if words:
            return Finding(INSIDE, label, "failed", words)
        words = inside_difference(actual, expected, callable_, self.evidence)
        if words and callable_.apart:
            return Finding(INSIDE, label, "not run", callable_.apart)
        if words and self.plain.inside_is_random(callable_):
            return Finding(INSIDE, label, "not run", RANDOM)
        return Finding(INSIDE, label, "failed" if words else "ok", words)

    def gradients(self, mode: Mode) -> Iterator[Finding]:
        """At every trainable variable, through every function, on a fresh load."""
        if self.unloadable or isinstance(self._loaded, Failure):
            return
        loaded, expected = Loaded(self.task.rewritten, plain=False), self.plain.gradients(mode)
        guesses = self.plain.callable_guesses()
        for callable_ in self.evidence.callables:
            label, check = callable_.label, f"gradients ({mode})"
            if label not in expected:
                yield Finding(check, label, "not run", "it cannot be called")
            elif not expected[label]:
                yield Finding(check, label, "-", "no float output")
            else:
                actual = gradients_of(loaded, callable_, self.evidence, self.plain.inputs, guesses[label], mode)
                yield self._gradients(callable_, mode, actual, expected[label])

    def _gradients(self, callable_: Callable_, mode: Mode, actual: Rounds, expected: Rounds) -> Finding:
        label, check = callable_.label, f"gradients ({mode})"
        words = frozen_difference(actual, self.evidence)
        if words:
            return Finding(check, label, "failed", words)
        if isinstance(expected[0], Failure):
            return Finding(check, label, "not run", f"the plain model has none: {expected[0].why}")
        words = gradient_difference(actual, expected, callable_, self.evidence)
        if words and callable_.apart:
            return Finding(check, label, "not run", callable_.apart)
        if words and self.plain.gradients_are_random(label, mode):
            return Finding(check, label, "not run", RANDOM)
        self.found.reached[label] = reached(actual, self.evidence)
        return Finding(check, label, "failed" if words else "ok", words)

    def graph_loader(self) -> Iterator[Finding]:
        """Signatures on poisoned weights, and what the saver of the graph writes."""
        if not self.evidence.holdings or self.evidence.phase:
            return
        with tempfile.TemporaryDirectory(prefix="graphfreeze-") as name:
            yield from self._graph_loader(Path(name))

    def _graph_loader(self, folder: Path) -> Iterator[Finding]:
        expected = self.plain.graph_run(folder)
        if isinstance(expected, Failure):
            yield Finding(GRAPH, "", "not run", f"it does not load the plain model: {expected.why}")
            return
        target = folder / "rewritten"
        put = poisoned_tensors(self.evidence, self.plain.disk_values, plain=False)
        write_shadow(read_saved_model(self.task.rewritten), target, put=put)
        actual = run_graph(target, self.evidence, folder / "saved", hasty=self._hasty)
        if isinstance(actual, Failure):
            yield Finding(GRAPH, "", "failed", f"loads the plain model, for the rewritten one it raises {actual.why}")
            return
        for key, words in actual.differences.items():
            yield Finding(GRAPH, key, "failed", f"restored and saved again: {words}")
        if self._hasty and actual.differences:
            return
        for name, rounds in expected.outputs.items():
            ran = actual.outputs.get(name, [Failure("no such signature")] * len(rounds))
            yield self._signature(f"signature {name}", ran, rounds)

    def _signature(self, label: str, actual: list[Result], expected: list[Result]) -> Finding:
        failures = [r.why for r in expected if isinstance(r, Failure)]
        if len(failures) == len(expected):
            return Finding(GRAPH, label, "not run", failures[0])
        words = first_difference(actual, expected)
        if words and not self.unloadable and label in self.plain.forward[0] and self.plain.is_random(label):
            return Finding(GRAPH, label, "not run", RANDOM)
        apart = next((c.apart for c in self.evidence.callables if c.label == label), "")
        if words and apart and not new_nan(actual, expected):
            return Finding(GRAPH, label, "not run", apart)
        return Finding(GRAPH, label, "failed" if words else "ok", words)

    def training(self) -> Iterator[Finding]:
        """The optimizers that were asked for, in each mode."""
        for title, make in make_optimizers(self.task.optimizer).items():
            for mode in MODES:
                yield from self._train(title, make, mode)

    def _train(self, title: str, make: Make, mode: Mode) -> Iterator[Finding]:
        check = f"training {title} ({mode})"
        if self.unloadable or isinstance(self._loaded, Failure):
            return
        by_label = {c.label: c for c in self.evidence.callables}
        guesses = self.plain.callable_guesses()
        labels = smallest_cover(self.found.reached)
        if not self.evidence.trains or not labels:
            why = "a gradient reaches nothing that trains" if self.evidence.trains else "nothing is left to train"
            yield Finding(check, "", "not run", why)
            return
        through = [(by_label[label], guesses[label]) for label in labels]
        steps, inputs = self.task.steps, self.plain.inputs
        try:
            loaded = Loaded(self.task.rewritten, plain=False)
            moves = train(loaded, self.evidence, through, inputs, make, steps=steps, mode=mode)
        except Exception as error:
            yield self._did_not_train(check, make, mode, through, error)
            return
        yield from self._moved(check, title, mode, moves)

    def _moved(self, check: str, title: str, mode: Mode, moves: dict[str, Moves]) -> Iterator[Finding]:
        names = {h.path: h.name for h in self.evidence.holdings}
        failed = False
        for path, move in moves.items():
            if move.frozen_moved:
                failed = True
                words = f"{move.frozen_moved:,} frozen elements moved, by up to {move.change:.3g}"
                yield Finding(check, names[path], "failed", words)
        moved = sum(m.moved for m in moves.values())
        if not moved and self.task.steps:
            failed = True
            yield Finding(check, "", "failed", "nothing moved, though a gradient reaches what trains")
        self.found.moves.append(moves)
        frozen = sum(h.frozen.count for h in self.evidence.holdings)
        status: Status = "failed" if failed else "ok"
        change = max((m.change for m in moves.values()), default=0.0)
        self.found.training.append(
            TrainingResult(title, mode, self.task.steps, frozen, change, self._trainable(moves), moved, status)
        )

    def _trainable(self, moves: dict[str, Moves]) -> int:
        sizes = {h.path: h.frozen.size - h.frozen.count for h in self.evidence.holdings}
        return sum(sizes[path] for path in moves if path in sizes) + sum(o.elements for o in self.evidence.others)

    def _did_not_train(
        self, check: str, make: Make, mode: Mode, through: list[tuple[Callable_, Guess]], error: Exception
    ) -> Finding:
        """A failure, unless the plain model cannot be trained so either."""
        try:
            train(self.plain.load(), self.evidence, through, self.plain.inputs, make, steps=1, mode=mode)
        except Exception as same:
            return Finding(check, "", "not run", f"the plain model cannot be trained so: {words_of(same)}")
        return Finding(check, "", "failed", f"raises {words_of(error)}")
