"""Copies data shards in the background: they are known as soon as a model is open, what goes beside them much later.

Tracing, planning and the passes keep one core busy and the disk idle. The copies go into a hidden folder beside the
target and are renamed into place when the model is written; if it never is, they go away.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

from graphfreeze.savedmodel.bundle import Bundle
from graphfreeze.savedmodel.files import copy_file

_GLANCE = 0.05
"""Seconds between two reports of progress while the writer waits for a copy."""


class ShardCopies:
    """Copies of the data shards of ``source`` beside ``target``, made by a thread. Close it whatever happens."""

    def __init__(self, source: Bundle, target: Path) -> None:
        goal = Path(os.path.realpath(target))
        self._source = source
        self._folder = goal.with_name(f".{goal.name}.graphfreeze-{os.urandom(4).hex()}-weights")
        self._stopped = Event()
        self._copied = 0
        self._told = 0
        self._done = {shard: Event() for shard in source.shard_sizes()}
        self._error: Exception | None = None
        self._thread: Thread | None = None
        # A folder that has to be made first is made by whoever writes: a failed plan leaves nothing behind.
        if goal.parent.is_dir():
            self._thread = Thread(target=self._run, name="graphfreeze-copy", daemon=True)
            self._thread.start()

    def take(self, shard: int, path: Path, tick: Callable[[int], None]) -> None:
        """Moves the copy of a shard to ``path``, when it is complete; ``tick`` gets bytes as they are copied.

        Raises:
            InputOutputError: the shard could not be copied.
        """
        if self._thread is None:
            copy_file(self._source.shard_path(shard), path, tick)
            return
        while not self._done[shard].wait(_GLANCE) and self._error is None:
            self._tell(tick)
        if self._error is not None:
            raise self._error
        self._tell(tick)
        self._copy(shard).rename(path)

    def close(self) -> None:
        """Ends the copying and removes what nobody took."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _copy(self, shard: int) -> Path:
        return self._folder / str(shard)

    def _tell(self, tick: Callable[[int], None]) -> None:
        copied = self._copied
        tick(copied - self._told)
        self._told = copied

    def _run(self) -> None:
        try:
            self._folder.mkdir()
            for shard, done in self._done.items():
                copy_file(self._source.shard_path(shard), self._copy(shard), self._count)
                done.set()
        except _Stopped:
            pass
        except Exception as error:  # of the thread; whoever takes the copy gets it
            self._error = error

    def _count(self, size: int) -> None:
        self._copied += size
        if self._stopped.is_set():
            raise _Stopped


class _Stopped(Exception):  # noqa: N818 (no error: the way out of a copy that nobody wants any more)
    pass
