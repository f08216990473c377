"""Writes a SavedModel directory so that it is there whole or not at all.

Everything goes into a hidden folder beside the target, is synced, and takes the target's name in one rename. The proto
is written last: the rest of a killed run is never taken for a model. The source is only read.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from graphfreeze.errors import InputOutputError, InternalError
from graphfreeze.savedmodel.ahead import ShardCopies
from graphfreeze.savedmodel.bundle_write import (
    Progress,
    Put,
    Weights,
    protect_files,
    repack_bundle,
    restore_modes,
    write_bundle,
)
from graphfreeze.savedmodel.container import PROTO_FILE, TEXT_FILE, VARIABLES_PREFIX, SavedModel
from graphfreeze.savedmodel.files import copy_file, reported, sync_folder, write_file
from graphfreeze.savedmodel.protos import Message


def write_saved_model(
    model: SavedModel,
    target: Path,
    *,
    put: Mapping[str, Put] | None = None,
    drop: Collection[str] = (),
    weights: Weights = "copy",
    repack: bool = False,
    overwrite: bool = False,
    extra_files: Mapping[str, bytes] | None = None,
    omit: Collection[str] = (),
    progress: Progress | None = None,
    copies: ShardCopies | None = None,
) -> None:
    """Writes ``model`` to the new directory ``target``; a SavedModel there is replaced only with ``overwrite``.

    The checkpoint gets the tensors of ``put`` and loses those named in ``drop``. Its data shards are copied, or
    hard-linked with ``weights="link"``, or with ``repack`` written anew as one shard without gaps. All other files are
    copied but those in ``omit``; ``extra_files`` come on top, both by path relative to the directory.
    """
    goal = Path(os.path.realpath(target))
    check_target(model, target, overwrite=overwrite)
    linked: list[Path] = []
    with _staging(goal) as staging:
        _copy_others(model, staging, {Path(path) for path in omit} | {Path(path) for path in extra_files or {}})
        for path, data in (extra_files or {}).items():
            _write_extra(staging, Path(path), data)
        if model.bundle is not None or put:
            linked += _write_variables(model, staging, put or {}, drop, weights, repack, progress, copies)
        # Last, so that whatever an interrupted run leaves behind is no model to any loader.
        write_file(staging / PROTO_FILE, serialize(model.proto))
        _sync_tree(staging)
        with _protected(linked):
            _move_into_place(staging, goal, overwrite)


def check_target(model: SavedModel, target: Path, *, overwrite: bool = False) -> None:
    """Refuses a target that exists, or that is, holds or lies in the source."""
    goal, source = Path(os.path.realpath(target)), Path(os.path.realpath(model.directory))
    if goal == source:
        raise InputOutputError(f"'{target}' is the model being read. Write to another directory")
    if source in goal.parents:
        raise InputOutputError(f"'{target}' lies inside the model being read, '{model.directory}'. Write beside it")
    if goal in source.parents:
        raise InputOutputError(f"'{target}' holds the model being read, '{model.directory}'. Write elsewhere")
    if not os.path.lexists(goal):
        return
    if not overwrite:
        raise InputOutputError(f"'{target}' exists already. Give --overwrite to replace it")
    if not goal.is_dir():
        raise InputOutputError(f"'{target}' exists and is not a directory. Remove it first")
    is_model = any((goal / name).is_file() for name in (PROTO_FILE, TEXT_FILE))
    if not is_model and any(goal.iterdir()):
        raise InputOutputError(f"'{target}' exists and is not a SavedModel. --overwrite replaces only a SavedModel")


def serialize(proto: Message) -> bytes:
    """The bytes of a message, the same for equal messages within one version of protobuf."""
    try:
        data: bytes = proto.SerializeToString(deterministic=True)
    except Exception as error:  # protobuf's own EncodeError and ValueError, depending on its implementation
        raise InternalError(f"the SavedModel cannot be serialised: {error}") from error
    return data


@contextmanager
def _staging(goal: Path) -> Iterator[Path]:
    """A new hidden folder beside the target, gone afterwards unless it was renamed away."""
    staging = goal.with_name(f".{goal.name}.graphfreeze-{os.urandom(4).hex()}")
    with reported("create", goal):
        goal.parent.mkdir(parents=True, exist_ok=True)
        staging.mkdir()
    try:
        with reported("write", goal):
            yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _copy_others(model: SavedModel, staging: Path, without: Collection[Path]) -> None:
    with reported("read", model.directory):
        folders, files = model.empty_folders(), model.other_files()
    for folder in folders:
        (staging / folder).mkdir(parents=True, exist_ok=True)
    for path in files:
        if path in without:
            continue
        source = model.directory / path
        if not source.is_file():
            raise InputOutputError(f"'{source}' is neither a file nor a folder, or a broken link. Remove it first")
        (staging / path).parent.mkdir(parents=True, exist_ok=True)
        copy_file(source, staging / path)


def _write_extra(staging: Path, path: Path, data: bytes) -> None:
    if path.is_absolute() or ".." in path.parts:
        raise InternalError(f"the extra file '{path}' would lie outside the model")
    (staging / path).parent.mkdir(parents=True, exist_ok=True)
    write_file(staging / path, data)


def _write_variables(
    model: SavedModel,
    staging: Path,
    put: Mapping[str, Put],
    drop: Collection[str],
    weights: Weights,
    repack: bool,
    progress: Progress | None,
    copies: ShardCopies | None,
) -> tuple[Path, ...]:
    """Writes the checkpoint; returns the data shards that are hard links."""
    prefix = staging / VARIABLES_PREFIX
    prefix.parent.mkdir(exist_ok=True)
    if repack:
        written = repack_bundle(prefix, model.bundle, put=put, drop=drop, progress=progress)
    else:
        written = write_bundle(
            prefix,
            source=model.bundle,
            put=put,
            drop=drop,
            weights=weights,
            progress=progress,
            protect=False,
            copies=copies,
        )
    return written.linked


@contextmanager
def _protected(linked: Collection[Path]) -> Iterator[None]:
    """Makes linked shards read-only; undone when what follows fails, because the source shares their mode."""
    before = protect_files(linked)
    try:
        yield
    except BaseException:
        restore_modes(before)
        raise


def _sync_tree(root: Path) -> None:
    """Files were synced as they were written; this makes their names durable."""
    for folder, _, _ in os.walk(root):
        sync_folder(Path(folder))


def _move_into_place(staging: Path, goal: Path, overwrite: bool) -> None:
    if not overwrite or not os.path.lexists(goal):
        if os.path.lexists(goal):
            raise InputOutputError(f"'{goal}' appeared during the write. Give --overwrite to replace it")
        staging.rename(goal)
        sync_folder(goal.parent)
        return
    away = staging.with_name(staging.name + "-old")
    goal.rename(away)
    try:
        staging.rename(goal)
    except BaseException:
        away.rename(goal)
        raise
    sync_folder(goal.parent)
    shutil.rmtree(away, ignore_errors=True)
