"""Starts tests.end_to_end.elsewhere in a fresh process, once for many jobs."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def elsewhere(what: str, jobs: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The answers to the jobs, in order."""
    asked, answered = folder / f"{what}_jobs.json", folder / f"{what}_answers.json"
    asked.write_text(json.dumps(jobs))
    command = [sys.executable, "-m", "tests.end_to_end.elsewhere", what, str(asked), str(answered)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(answered.read_text())
    return found


def check_all(names: Iterable[str], check: Callable[[str], None]) -> None:
    """Checks every name and reports all failures. One test, so that no second worker starts the processes again."""
    failures = []
    for name in names:
        try:
            check(name)
        except AssertionError as error:
            failures.append(f"{name}: {error}")
    assert not failures, "\n".join(failures)
