"""Starts tests.end_to_end.elsewhere in a fresh process, once for many jobs."""

import json
import subprocess
import sys
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
