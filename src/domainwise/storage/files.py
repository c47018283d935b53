"""Atomic writes and locks: a file is either as it was or complete, whenever the process dies."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

SUFFIX = ".partial"


class LockedError(Exception):
    """Another process holds the lock."""


@contextmanager
def open_atomic(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` once all of it is on disk."""
    partial = path.with_name(f".{path.name}{SUFFIX}")
    try:
        with open(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        _sync_folder(path.parent)
    except OSError as error:
        error.filename = error.filename or os.fspath(path)
        # The disk may be full, and an incomplete file only takes up space.
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def write_atomic(path: Path, content: bytes | memoryview) -> None:
    """Write a whole file, or leave it as it was."""
    with open_atomic(path) as file:
        file.write(content)


def remove_partial_files(folder: Path) -> None:
    """Delete the incomplete files that a killed process left behind; nothing refers to them."""
    for partial in folder.glob(f".*{SUFFIX}"):
        partial.unlink(missing_ok=True)


@contextmanager
def hold_lock(file: Path, *, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of `file`; the operating system releases it if this process dies.

    Args:
        on_wait: called before waiting for another process. Without it, a lock held elsewhere raises `LockedError`.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        if on_wait is None:
            raise LockedError(str(file)) from error
        on_wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _sync_folder(folder: Path) -> None:
    # The rename itself is durable only once the folder is. Windows cannot open folders and does not need this.
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
