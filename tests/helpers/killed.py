"""Runs `graphfreeze.train` again and again in children of one process, each killed (-9) at a moment of its own.

A script: `python -m tests.helpers.killed JOBS.json` prints one line of JSON, the exit status of every job. TensorFlow
is imported once and starts in the children only, so a run costs what it computes.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

WATCHED = ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "shutil.rmtree", "os.listdir", "os.scandir")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Moment:
    """Dies once a step was made: at once, some milliseconds later, or at the N-th touch of a file after it."""

    def __init__(self, step: int, after: float | None = None, touch: int | None = None) -> None:
        self.step, self.after, self.touch = step, after, touch
        self.reached = False
        sys.addaudithook(self.touched)

    def progress(self, tick) -> None:
        if tick.step < self.step or self.reached:
            return
        self.reached = True
        if self.after is not None:
            threading.Timer(self.after, kill).start()
        elif self.touch is None:
            kill()

    def touched(self, event: str, arguments) -> None:
        if not self.reached or self.touch is None or event not in WATCHED:
            return
        self.touch -= 1
        if self.touch <= 0:
            kill()


def run(job: dict) -> int:
    """One child; its status as `os.waitpid` gives it."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        import graphfreeze

        moment = Moment(**job["moment"]) if job["moment"] else None
        done = graphfreeze.train(**job["arguments"], progress=moment.progress if moment else None)
        Path(job["report"]).write_text(json.dumps(done.to_dict()))
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    jobs = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps([run(job) for job in jobs]))  # noqa: T201


if __name__ == "__main__":
    main()
