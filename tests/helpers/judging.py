"""``verify`` as the judge of mutants: the steps of ``graphfreeze.verify``, here, until the first failure.

What the plain model computes is worked out once for all mutants of a model.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import graphfreeze
from graphfreeze.errors import GraphfreezeError
from graphfreeze.passes.pair import prepare_pair
from graphfreeze.runtime.verifying.plain import Plain
from graphfreeze.runtime.verifying.run import GRAPH, Run
from graphfreeze.runtime.verifying.task import Task
from graphfreeze.savedmodel import open_draft
from tests.helpers.mutation import Mutant, write_mutant

_GRADIENTS = ("stop", "outputs of a loop")
_SAVER = ("restore", "save", "RestoreV2", "SaveV2", "saver's call")


class Judge:
    """A rewritten model, and whether ``verify`` notices its mutants."""

    def __init__(self, source: Path, folder: Path, *, steps: int = 2, optimizer: str = "adamw", **options: Any) -> None:
        self.source, self.folder, self.steps, self.optimizer = source, folder, steps, optimizer
        self.out = folder / "out"
        self.plan = graphfreeze.rewrite(source, self.out, allow_empty=True, **options)
        # What is written to run both stays, for the plain model may be part of it.
        self.task = self._task(self.out, folder / "pair")
        self.plain = Plain(self.task)

    def run(self) -> Run:
        """A run on the model as it was rewritten."""
        return Run(self.task, self.plain)

    def noticed_by(self, mutant: Mutant) -> str | None:
        """The check that fails on a mutant."""
        path, pair = self.folder / "mutant", self.folder / "mutant's pair"
        for folder in (path, pair):
            shutil.rmtree(folder, ignore_errors=True)
        write_mutant(self.out, path, mutant)
        try:
            task = self._task(path, pair)
        except GraphfreezeError as error:
            return type(error).__name__
        plain = self.plain if _alike(task, self.plain.task) else Plain(task)
        failure = Run(task, plain).first_failure(_likely(mutant))
        return None if failure is None else failure.check

    def _task(self, path: Path, folder: Path) -> Task:
        pair = prepare_pair(open_draft(self.source), open_draft(path), folder)
        (evidence,) = pair.evidence
        return Task(pair.plain, pair.rewritten, evidence, self.steps, self.optimizer, old_keras=pair.old_keras)


def _likely(mutant: Mutant) -> list[str]:
    """The check that should notice it, which runs first."""
    in_main_graph = mutant.place.startswith(" ")
    if in_main_graph or mutant.kind in _SAVER:
        return [GRAPH]
    return ["gradients (eager)"] if mutant.kind in _GRADIENTS else []


def _alike(one: Task, other: Task) -> bool:
    """Whether what the plain model computes for one task counts for the other."""
    a, b = one.evidence, other.evidence
    same = [(h.path, h.frozen) for h in a.holdings] == [(h.path, h.frozen) for h in b.holdings]
    return same and [o.path for o in a.others] == [o.path for o in b.others] and a.callables == b.callables


@contextmanager
def quick_functions() -> Iterator[None]:
    """TensorFlow without its optimizer of graphs, which takes half of the time that these small models need."""
    import tensorflow as tf

    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({**before, "disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({**before, "disable_meta_optimizer": False})
