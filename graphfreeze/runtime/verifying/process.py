"""Runs a task in a fresh process, so that the caller never starts TensorFlow and nothing it has loaded plays a part.

The task goes in as a file, the result comes out as one; each line that the process prints says what it is at, which is
also what is said of one that dies.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphfreeze import errors
from graphfreeze.errors import GraphfreezeError, InternalError, VerificationError
from graphfreeze.runtime.verifying.results import Rows
from graphfreeze.runtime.verifying.task import Task

_LAST_WORDS = 400


def run_afresh(task: Task, tell: Callable[[str], None] | None = None) -> Rows:
    """What was found; ``tell`` is called with the name of each check that begins.

    Raises:
        GraphfreezeError: what the process raised.
        VerificationError: the process died.
        InternalError: it failed in a way that nobody thought of.
    """
    with tempfile.TemporaryDirectory(prefix="graphfreeze-") as name:
        given, result, words = Path(name, "task"), Path(name, "result"), Path(name, "words")
        given.write_bytes(pickle.dumps(task))
        with words.open("wb") as stderr:
            code, stage = _run(given, result, stderr, tell or (lambda _: None))
        if not result.is_file():
            raise VerificationError(_death(code, stage, words.read_text(encoding="utf-8", errors="replace")))
        return _read(json.loads(result.read_text(encoding="utf-8")))


def _run(given: Path, result: Path, stderr: Any, tell: Callable[[str], None]) -> tuple[int, str]:
    command = [sys.executable, "-m", "graphfreeze.runtime.verifying", str(given), str(result)]
    home = str(Path(errors.__file__).parent.parent)
    path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "PYTHONPATH": path}
    stage = "starting TensorFlow"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                stage = line.strip() or stage
                tell(stage)
            code = process.wait()
        except BaseException:
            process.kill()
            raise
    return code, stage


def _death(code: int, stage: str, words: str) -> str:
    how = f"ended with code {code}"
    if code < 0:
        how = f"was killed by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"got signal {-code}"
    hint = "; SIGKILL often means that memory ran out" if code == -signal.SIGKILL else ""
    last = " ".join(words.split())[-_LAST_WORDS:]
    said = f" Its last words: {last}" if last else ""
    return f"The process that runs the models {how} while it was at '{stage}'{hint}.{said}"


def _read(data: dict[str, Any]) -> Rows:
    if "error" in data:
        kind = getattr(errors, data["error"]["kind"], None)
        if isinstance(kind, type) and issubclass(kind, GraphfreezeError):
            raise kind(data["error"]["message"])
        error = InternalError(data["error"]["message"])
        error.add_note(data["error"]["traceback"])
        raise error
    return Rows.from_dict(data)
