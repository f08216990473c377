"""Checkpoints of a run, each there whole or not at all, with a state file that says where the run stands.

A checkpoint is a folder: the files of TensorFlow and ``state.json``. It is written under a hidden name, synced, and
takes its own in one rename; so a kill at any moment leaves the last whole one, and hidden rests that the next run
removes. One run at a time holds the folder of checkpoints, by a lock that ends with its process.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graphfreeze.errors import InputOutputError, UsageError
from graphfreeze.savedmodel.files import reported, sync_folder, write_file

FORMAT = 1
PREFIX = "checkpoint"
"""Of TensorFlow's files in a checkpoint."""
STATE = "state.json"
_NAME = re.compile(r"checkpoint-(\d{6,})")
_LOCK = ".lock"
_HIDDEN = ".graphfreeze-"


class Store:
    """The checkpoints of one run in one folder."""

    def __init__(self, folder: Path, identity: Mapping[str, Any], keep: int) -> None:
        self.folder, self.identity, self.keep = folder, dict(identity), keep

    @contextmanager
    def held(self) -> Iterator[None]:
        """Makes the folder and keeps other runs out of it.

        Raises:
            UsageError: another run is at it.
            InputOutputError: it cannot be written.
        """
        with reported("write", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"Another run is writing its checkpoints to '{self.folder}'. Wait for it, or give another folder"
                ) from None
            for rest in self.folder.glob(f"{_HIDDEN}*"):
                shutil.rmtree(rest, ignore_errors=True)
            yield
        finally:
            os.close(lock)

    def latest(self) -> tuple[Path, dict[str, Any]] | None:
        """The last whole checkpoint, as the prefix of TensorFlow's files and the state; None where there is none.

        Raises:
            UsageError: it belongs to a run of another model, other data or other options.
            InputOutputError: it is damaged.
        """
        numbers = self._numbers()
        if not numbers:
            return None
        folder = self.folder / _name(numbers[-1])
        with reported("read", folder):
            text = (folder / STATE).read_bytes()
        try:
            content = json.loads(text)
            identity, state = content["identity"], content["state"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputOutputError(
                f"The state of the checkpoint '{folder}' is damaged. Remove that folder to go on from the one before"
            ) from error
        if content.get("format") != FORMAT:
            raise UsageError(f"Another version of graphfreeze wrote the checkpoint '{folder}'. Go on with that one")
        self._refuse_another(identity)
        return folder / PREFIX, state

    def save(self, state: Mapping[str, Any], write: Callable[[Path], None]) -> Path:
        """Writes a checkpoint and removes old ones; ``write`` gets the prefix of TensorFlow's files."""
        number = max(self._numbers(), default=0) + 1
        staging, goal = self.folder / f"{_HIDDEN}{os.urandom(4).hex()}", self.folder / _name(number)
        with reported("write", self.folder):
            staging.mkdir()
            try:
                write(staging / PREFIX)
                content = {"format": FORMAT, "identity": self.identity, "state": dict(state)}
                for path in staging.iterdir():
                    _sync(path)
                write_file(staging / STATE, json.dumps(content, indent=1).encode())
                sync_folder(staging)
                staging.rename(goal)
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise
            sync_folder(self.folder)
            self._prune()
        return goal

    def _numbers(self) -> list[int]:
        with reported("read", self.folder):
            return sorted(int(m[1]) for p in self.folder.iterdir() if (m := _NAME.fullmatch(p.name)) and p.is_dir())

    def _prune(self) -> None:
        for number in self._numbers()[: -self.keep]:
            # Out of sight first: a folder that is half removed must not count as a checkpoint.
            hidden = self.folder / f"{_HIDDEN}{os.urandom(4).hex()}"
            (self.folder / _name(number)).rename(hidden)
            shutil.rmtree(hidden, ignore_errors=True)

    def _refuse_another(self, identity: Mapping[str, Any]) -> None:
        for key, now in self.identity.items():
            before = identity.get(key)
            if before == now:
                continue
            if key in ("model", "data"):
                what = f"a run with {'another model' if key == 'model' else 'other data'}"
            else:
                what = f"a run with '{key}' {_said(before)}, and now it is {_said(now)}"
            raise UsageError(
                f"The checkpoints in '{self.folder}' belong to {what}. Give the same again to go on, or another folder "
                "to start anew"
            )


def _name(number: int) -> str:
    return f"checkpoint-{number:06d}"


def _said(value: Any) -> str:
    if isinstance(value, list):
        return "'" + ",".join(f"{name}:{epochs}" if name else str(epochs) for name, epochs in value) + "'"
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
