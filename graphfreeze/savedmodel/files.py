"""Moves bytes between files without Python seeing them, and turns errors of the file system into ours.

Copies share blocks where the file system can (``FICLONE``), else the kernel copies (``copy_file_range``), else they are
read and written in pieces. Memory stays small however large the file is.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from graphfreeze.errors import InputOutputError

Tick = Callable[[int], None]
"""Called with the number of bytes just written."""

_FICLONE = 0x40049409
# Large enough for speed, small enough for a lively progress bar, a prompt Ctrl-C and an early start of writing.
_STEP = 1 << 23
_BUFFER = 1 << 20
_NOT_ON_THIS_FILE_SYSTEM = {
    errno.EXDEV,
    errno.EINVAL,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.ENOTTY,
    errno.EPERM,
    errno.EBADF,
    errno.EIO,
}


@contextmanager
def reported(action: str, path: Path) -> Iterator[None]:
    """Turns an ``OSError`` inside into an InputOutputError: ``cannot ACTION 'PATH': reason``, next step.

    ``path`` may be a folder; the message names the file in it that the error is about.
    """
    try:
        yield
    except OSError as error:
        hint = {
            errno.ENOSPC: ". Free some space or write elsewhere",
            errno.EDQUOT: ". Free some space or write elsewhere",
            errno.EACCES: ". Check the permissions",
            errno.EPERM: ". Check the permissions",
            errno.EROFS: ". Write elsewhere",
            errno.EEXIST: ". A file stands where a folder is needed",
            errno.ENOTDIR: ". A file stands where a folder is needed",
        }.get(error.errno or 0, "")
        inside = isinstance(error.filename, str) and Path(error.filename).is_relative_to(path)
        where = error.filename if inside else path
        raise InputOutputError(f"cannot {action} '{where}': {error.strerror or error}{hint}") from error


def copy_file(source: Path, target: Path, tick: Tick | None = None) -> None:
    """Copies the bytes of ``source`` into the new file ``target`` and syncs it."""
    with reported("copy to", target), source.open("rb") as reader, target.open("xb") as writer:
        size = os.fstat(reader.fileno()).st_size
        if _clone(reader.fileno(), writer.fileno()):
            if tick is not None:
                tick(size)
        else:
            copy_range(reader.fileno(), writer.fileno(), 0, size, tick)
        os.fsync(writer.fileno())


def copy_range(reader: int, writer: int, offset: int, size: int, tick: Tick | None = None) -> None:
    """Appends ``size`` bytes of ``reader`` from ``offset`` on at the position of ``writer``."""
    done = _kernel_copy(reader, writer, offset, size, tick)
    while done < size:
        piece = os.pread(reader, min(_BUFFER, size - done), offset + done)
        if not piece:
            raise OSError(errno.EIO, f"the file being copied ends {size - done} bytes early")
        _write_all(writer, piece)
        done += len(piece)
        if tick is not None:
            tick(len(piece))


def link_file(source: Path, target: Path) -> None:
    """Gives the file a second name; the bytes then belong to both."""
    try:
        # Resolved first: a link to a symbolic link would break when the two are moved apart.
        os.link(os.path.realpath(source), target)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise InputOutputError(
                f"cannot link '{target}' to '{source}': they lie on different file systems. "
                "Write the model on the same one, or copy the weights instead of linking them"
            ) from error
        raise InputOutputError(
            f"cannot link '{target}' to '{source}': {error.strerror}. Copy the weights instead of linking them"
        ) from error


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable; file systems that cannot are left as they are."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):
            raise
    finally:
        os.close(handle)


def write_file(path: Path, data: bytes) -> None:
    """Writes the new file ``path`` and syncs it."""
    with reported("write", path), path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _clone(reader: int, writer: int) -> bool:
    try:
        fcntl.ioctl(writer, _FICLONE, reader)
    except OSError as error:
        if error.errno in _NOT_ON_THIS_FILE_SYSTEM:
            return False
        raise
    return True


def _kernel_copy(reader: int, writer: int, offset: int, size: int, tick: Tick | None) -> int:
    """Copies as much as the kernel will; returns how much that was."""
    done = 0
    while done < size and hasattr(os, "copy_file_range"):
        try:
            copied = os.copy_file_range(reader, writer, min(_STEP, size - done), offset_src=offset + done)
        except OSError as error:
            if error.errno in _NOT_ON_THIS_FILE_SYSTEM:
                break
            raise
        if copied == 0:
            break
        _write_early(writer, copied)
        done += copied
        if tick is not None:
            tick(copied)
    return done


def _write_early(writer: int, size: int) -> None:
    """Lets the disk begin with what was just written, so that less is left to wait for at the end.

    The advice starts writing; pages that are being written stay in memory (mm/fadvise.c).
    """
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            position = os.lseek(writer, 0, os.SEEK_CUR)
            os.posix_fadvise(writer, position - size, size, os.POSIX_FADV_DONTNEED)


def _write_all(writer: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(writer, view) :]
