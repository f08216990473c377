"""A checkpoint by its prefix, ``DIR/NAME`` for ``DIR/NAME.index`` and its data shards: found, checked, written.

Written as a SavedModel is: in a hidden folder beside, and moved into place, the index last. Without its index nothing
takes the rest for a checkpoint.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from graphfreeze.errors import InputOutputError
from graphfreeze.savedmodel.bundle import Bundle, index_path, read_bundle
from graphfreeze.savedmodel.bundle_write import Progress, Put, repack_bundle
from graphfreeze.savedmodel.files import reported, sync_folder

_SUFFIX = re.compile(r"\.(index|data-\d{5}-of-\d{5})\Z")
_MOST_LISTED = 3


def open_checkpoint(prefix: Path) -> Bundle:
    """Opens the checkpoint at ``prefix``; the name of one of its files stands for it too.

    Raises:
        InputOutputError: there is none, or it is damaged.
    """
    prefix = prefix.with_name(_SUFFIX.sub("", prefix.name))
    if not index_path(prefix).is_file():
        raise InputOutputError(f"'{prefix}' is no checkpoint: there is no file '{prefix}.index'.{_instead(prefix)}")
    return read_bundle(prefix)


def check_prefix(source: Path, target: Path, *, overwrite: bool = False) -> None:
    """Refuses a target that exists, is a folder, or is the source.

    Raises:
        InputOutputError: it does.
    """
    if not target.name or target.is_dir():
        raise InputOutputError(f"'{target}' is a folder. Give a prefix in it, such as '{target / 'ckpt-1'}'")
    if _SUFFIX.search(target.name):
        raise InputOutputError(
            f"'{target}' is the name of a file of a checkpoint. Give its prefix, '{_SUFFIX.sub('', str(target))}'"
        )
    if os.path.realpath(index_path(source)) == os.path.realpath(index_path(target)):
        raise InputOutputError(f"'{target}' is the checkpoint being read. Write to another prefix")
    if not overwrite and any(_files(target)):
        raise InputOutputError(f"'{target}' exists already. Give --overwrite to replace it")


def write_checkpoint(
    target: Path,
    source: Bundle,
    *,
    put: Mapping[str, Put],
    drop: Collection[str] = (),
    overwrite: bool = False,
    progress: Progress | None = None,
) -> None:
    """Writes the tensors of ``source`` but ``drop``, and those of ``put``, as one data shard and an index."""
    check_prefix(source.prefix, target, overwrite=overwrite)
    with _staging(target) as staging:
        written = repack_bundle(staging / target.name, source, put=put, drop=drop, progress=progress)
        with reported("write", target):
            # The index of what is replaced goes first: it must never stand beside other data.
            for path in sorted(_files(target), key=lambda p: not p.name.endswith(".index")):
                path.unlink()
            for path in written.files:
                path.rename(target.with_name(path.name))
            sync_folder(target.parent)


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    staging = target.with_name(f".{target.name}.graphfreeze-{os.urandom(4).hex()}")
    with reported("create", target):
        target.parent.mkdir(parents=True, exist_ok=True)
        staging.mkdir()
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _files(prefix: Path) -> Iterator[Path]:
    """The files of a checkpoint; their names may hold what a pattern would expand."""
    try:
        with os.scandir(prefix.parent) as found:
            names = [entry.name for entry in found]
    except FileNotFoundError:
        return
    for name in names:
        if _SUFFIX.search(name) and _SUFFIX.sub("", name) == prefix.name:
            yield prefix.with_name(name)


def _instead(prefix: Path) -> str:
    """What the user may have meant."""
    folder = prefix if prefix.is_dir() else prefix.parent
    if not folder.is_dir():
        return f" There is no folder '{folder}'"
    if (folder / "variables" / "variables.index").is_file():
        return f" The checkpoint of the SavedModel there is '{folder / 'variables' / 'variables'}'"
    names = [p.name.removesuffix(".index") for p in sorted(folder.glob("*.index"), key=_age)]
    if not names:
        return f" There is none in '{folder}'"
    import difflib

    near = difflib.get_close_matches(prefix.name, names, _MOST_LISTED) or names[:_MOST_LISTED]
    return " There are: " + ", ".join(f"'{folder / name}'" for name in near)


def _age(path: Path) -> float:
    """Newest first."""
    return -path.stat().st_mtime
