"""The cost of a rewrite beside the ways that exist: load and save with TensorFlow, and a plain copy.

Every run is a process of its own, as a user would start it, and its peak memory is the kernel's figure for that
process. Rounds are interleaved; before each run the file system is synced, so that nobody pays for another's writes.

    python benchmarks/rewrite.py [--json FILE] [--rounds N] [--quick]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import interleave, print_table, write_json

ROOT = Path(__file__).resolve().parents[1]

# TensorFlow and numpy stay out of this process: a child's peak memory would begin at its parent's.

BUILD = """
import sys
from pathlib import Path
from benchmarks.models import Transformer, save
save(Transformer(*map(int, sys.argv[2:])), Path(sys.argv[1]))
"""
LOAD_SAVE = """
import sys
import tensorflow as tf
tf.saved_model.save(tf.saved_model.load(sys.argv[1]), sys.argv[2])
"""
IMPORT = "import tensorflow"

LINK, COPY, LOAD, CP = "rewrite --weights link", "rewrite --weights copy", "load + save", "cp -r"
HALF, SYNCED, STARTED = "rewrite --weights link, half of the rows", "cp -r, synced", "import tensorflow"


@dataclass(frozen=True, slots=True)
class Size:
    """The model and the number of rounds."""

    vocabulary: int = 48_500
    width: int = 512
    blocks: int = 25
    trainable_rows: int = 100
    rounds: int = 7
    warm_up: bool = True


QUICK = Size(vocabulary=200, width=16, blocks=1, trainable_rows=10, rounds=1, warm_up=False)


class Run:
    """One command, timed from its start to its end; remembers the highest peak memory it saw."""

    def __init__(
        self, command: Sequence[str], output: Path, environment: Mapping[str, str], synced: bool = False
    ) -> None:
        self._command, self._output, self._environment, self._synced = list(command), output, environment, synced
        self.peak = 0.0

    def __call__(self) -> float:
        shutil.rmtree(self._output, ignore_errors=True)
        os.sync()
        begin = time.perf_counter()
        process = subprocess.Popen(
            self._command, env=dict(self._environment), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stderr.close()
        if self._synced:
            os.sync()
        seconds = time.perf_counter() - begin
        if process.returncode:
            raise RuntimeError(f"{self._command[:4]} failed:\n{errors.decode(errors='replace')[-2000:]}")
        self.peak = max(self.peak, usage.ru_maxrss / 1024)
        return seconds


def make_runs(scratch: Path, size: Size) -> dict[str, Run]:
    """Builds the model and says what is run on it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    # As where packages are installed: modules are compiled once, by the first run, which is not timed.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(scratch / "bytecode")
    python, model = sys.executable, str(scratch / "model")
    sizes = [str(size.vocabulary), str(size.width), str(size.blocks)]
    subprocess.run([python, "-c", BUILD, model, *sizes], env=environment, check=True, stderr=subprocess.DEVNULL)

    def rewrite(weights: str, frozen: int, name: str) -> Run:
        output = scratch / name
        selector = f"embeddings[:{frozen}]"
        command = [
            python,
            "-m",
            "graphfreeze",
            "rewrite",
            model,
            str(output),
            "--freeze",
            selector,
            "--weights",
            weights,
        ]
        return Run([*command, "--quiet"], output, environment)

    def other(command: Sequence[str], name: str, synced: bool = False) -> Run:
        return Run(command, scratch / name, environment, synced)

    most = size.vocabulary - size.trainable_rows
    return {
        LINK: rewrite("link", most, "linked"),
        HALF: rewrite("link", size.vocabulary // 2, "half"),
        COPY: rewrite("copy", most, "copied"),
        LOAD: other([python, "-c", LOAD_SAVE, model, str(scratch / "saved")], "saved"),
        STARTED: other([python, "-c", IMPORT], "nothing"),
        CP: other(["cp", "-r", model, str(scratch / "cp")], "cp"),
        SYNCED: other(["cp", "-r", model, str(scratch / "cp_synced")], "cp_synced", synced=True),
    }


def measure(scratch: Path, size: Size) -> dict[str, object]:
    """All figures, as plain values."""
    runs = make_runs(scratch, size)
    megabytes = sum(p.stat().st_size for p in (scratch / "model").rglob("*") if p.is_file()) / 1e6
    if size.warm_up:
        for run in runs.values():
            run()
    timed: dict[str, Callable[[], float]] = dict(runs)
    seconds = interleave(timed, size.rounds)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    figures = {
        name: {
            "seconds": medians[name],
            "fastest": min(seconds[name]),
            "slowest": max(seconds[name]),
            "peak_mib": run.peak,
            "times_faster_than_load_save": medians[LOAD] / medians[name],
        }
        for name, run in runs.items()
    }
    targets = {
        "link: times faster than load + save (at least 20)": medians[LOAD] / medians[LINK],
        "link: peak MiB (at most 150)": runs[LINK].peak,
        "copy: seconds more than cp -r (at most 0.5)": medians[COPY] - medians[CP],
        "copy: seconds more than cp -r, synced": medians[COPY] - medians[SYNCED],
    }
    return {"schema": 1, "benchmark": "rewrite", "model_mb": megabytes, "runs": figures, "targets": targets}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--rounds", type=int, help="timed runs of each (default 7)")
    parser.add_argument("--quick", action="store_true", help="a tiny model and one round: shows only that it works")
    parser.add_argument(
        "--scratch", type=Path, help="folder on the file system to measure (default: the temporary one)"
    )
    options = parser.parse_args(arguments)
    size = QUICK if options.quick else Size()
    if options.rounds:
        size = replace(size, rounds=options.rounds)
    with tempfile.TemporaryDirectory(prefix="graphfreeze-bench-", dir=options.scratch) as scratch:
        data = measure(Path(scratch), size)
    runs: dict[str, dict[str, float]] = data["runs"]  # type: ignore[assignment]
    targets: dict[str, float] = data["targets"]  # type: ignore[assignment]
    rows = [
        [name, f"{r['seconds']:.2f}", f"{r['fastest']:.2f}-{r['slowest']:.2f}", f"{r['peak_mib']:.0f}",
         f"{r['times_faster_than_load_save']:.1f}x"]
        for name, r in runs.items()
    ]  # fmt: skip
    title = f"A transformer of {data['model_mb']:.0f} MB, all but {size.trainable_rows} rows of its embedding frozen"
    print_table(
        f"{title}; {size.rounds} rounds", ["", "median s", "range", "peak MiB", "faster than load + save"], rows
    )
    print_table("Targets", ["", "measured"], [[name, f"{value:.2f}"] for name, value in targets.items()])
    if options.json:
        write_json(options.json, data)


if __name__ == "__main__":
    main()
