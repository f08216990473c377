"""The fresh process: ``python -m graphfreeze.runtime.verifying TASK RESULT``. See ``process``."""

from __future__ import annotations

import json
import pickle
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from graphfreeze.errors import GraphfreezeError
from graphfreeze.runtime.verifying.models import prepare
from graphfreeze.runtime.verifying.optimizers import make_optimizers
from graphfreeze.runtime.verifying.run import Run
from graphfreeze.runtime.verifying.summary import rows


def main(given: str, result: str) -> None:
    """Runs the task in the file ``given`` and writes what was found, or what was raised, to ``result``."""
    # The caller's own file, written a moment ago.
    task = pickle.loads(Path(given).read_bytes())
    try:
        prepare(old_keras=task.old_keras)
        make_optimizers(task.optimizer)
        found = execute(Run(task))
    except GraphfreezeError as error:
        found = {"error": {"kind": type(error).__name__, "message": str(error)}}
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        found = {"error": {"kind": "", "message": words, "traceback": traceback.format_exc()}}
    part = Path(f"{result}.part")
    part.write_text(json.dumps(found), encoding="utf-8")
    part.rename(result)


def _tell(stage: str) -> None:
    sys.stdout.write(f"{stage}\n")
    sys.stdout.flush()


def execute(run: Run) -> dict[str, Any]:
    """All checks, and their rows."""
    return asdict(rows(run.all(_tell), run.evidence))


if __name__ == "__main__":
    main(*sys.argv[1:])
