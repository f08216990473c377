"""Runs a model's own training signatures in a fresh process that knows nothing of graphfreeze: TensorFlow and numpy.

    python -m tests.helpers.stepping JOBS.json

Each job names a model, a way of loading it, a checkpoint to restore first, the steps to make and where to save. Inputs
are those of `batch`, which the oracle uses too.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Job:
    """What to do with one model."""

    model: str
    inputs: Mapping[str, tuple[str, list[int], int]]
    """Name -> (dtype, shape, upper bound for integers)."""
    saves: Mapping[int, str]
    """Number of steps made -> where to save then; the largest is the end."""
    restore: tuple[int, str] | None = None
    """The number of steps of a checkpoint, and the checkpoint."""
    loader: Literal["objects", "session"] = "objects"
    tags: tuple[str, ...] = ("serve",)
    signature: tuple[str, ...] = ("train",)
    """Of each step; they take turns."""


def batch(inputs: Mapping[str, tuple[str, list[int], int]], step: int) -> dict[str, Array]:
    """The inputs of a step, the same in every process."""
    generator = np.random.default_rng([5, step])
    made: dict[str, Array] = {}
    for name, (dtype, shape, bound) in sorted(inputs.items()):
        integer = np.dtype(dtype).kind == "i"
        value = generator.integers(0, bound, shape) if integer else generator.standard_normal(shape)
        made[name] = np.asarray(value).astype(dtype)
    return made


def run_jobs(jobs: list[Job], folder: Path) -> None:
    """Runs jobs in one fresh process, in which importing graphfreeze fails."""
    import os
    import subprocess

    listed = folder / "jobs.json"
    listed.write_text(json.dumps([asdict(job) for job in jobs]))
    blocked = folder / "blocked" / "graphfreeze"
    blocked.mkdir(parents=True, exist_ok=True)
    (blocked / "__init__.py").write_text("raise ImportError('graphfreeze is not here')\n")
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": f"{blocked.parent}{os.pathsep}{root}"}
    command = [sys.executable, str(Path(__file__)), str(listed)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def _objects(job: Job) -> None:
    import tensorflow as tf

    loaded = tf.saved_model.load(job.model)
    signatures = loaded.signatures
    first = 0
    if job.restore is not None:
        first = job.restore[0]
        signatures["restore"](path=tf.constant(job.restore[1]))
    for step in range(first, max(map(int, job.saves))):
        given = {name: tf.constant(value) for name, value in batch(job.inputs, step).items()}
        result = signatures[job.signature[step % len(job.signature)]](**given)
        assert np.isfinite(result["loss"].numpy()), step
        if (path := job.saves.get(str(step + 1))) is not None:  # type: ignore[call-overload]
            signatures["save"](path=tf.constant(path))


def _session(job: Job) -> None:
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf.Graph().as_default(), tf1.Session() as session:
        signatures = tf1.saved_model.load(session, list(job.tags), job.model).signature_def

        def call(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
            signature = signatures[name]
            feed = {signature.inputs[key].name: value for key, value in given.items()}
            found: dict[str, Any] = session.run({k: info.name for k, info in signature.outputs.items()}, feed)
            return found

        first = 0
        if job.restore is not None:
            first = job.restore[0]
            call("restore", {"path": job.restore[1]})
        for step in range(first, max(map(int, job.saves))):
            result = call(job.signature[step % len(job.signature)], batch(job.inputs, step))
            assert np.isfinite(result["loss"]), step
            if (path := job.saves.get(str(step + 1))) is not None:  # type: ignore[call-overload]
                call("save", {"path": path})


def main(listed: str) -> None:
    """Runs the jobs of a file."""
    for data in json.loads(Path(listed).read_text()):
        job = Job(**data)
        (_objects if job.loader == "objects" else _session)(job)


if __name__ == "__main__":
    main(sys.argv[1])
