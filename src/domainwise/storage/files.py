"""Files that are either as they were or complete, whenever the process dies."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

SUFFIX = ".partial"


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write in place of `path`: it takes that name only after all of it is on the disk."""
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
        # The disk may be full: what is half-written only takes up space.
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    with atomic_file(path) as file:
        file.write(content)


def remove_partial_files(folder: Path) -> None:
    """What a killed process left half-written; nothing refers to it."""
    for partial in folder.glob(f".*{SUFFIX}"):
        partial.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    # The rename itself is durable only once the folder is; Windows cannot open folders and needs no such call.
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LockedError(Exception):
    """Another process holds the lock."""


@contextmanager
def locked(file: Path, *, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of `file` inside. Where another process has it: call `on_wait` and wait, or raise `LockedError`."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock; two processes at the same work are then the user's to avoid.
        yield
        return
    # The file stays: were it removed, two processes could hold two files of one name.
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if on_wait is None:
                raise LockedError(str(file)) from error
            on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
