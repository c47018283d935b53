"""Atomic writes and locks: a file is either as it was or complete, whenever the process dies."""

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from domainwise.errors import DomainwiseError
from domainwise.escaping import escape_spreadsheet

if TYPE_CHECKING:
    import polars as pl

SUFFIX = ".partial"
# A status command tests the lock for an instant, which must not look like a process that trains.
_PATIENCE = 0.2


class LockedError(Exception):
    """Another process holds the lock."""


@contextmanager
def open_atomic(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` once all of it is on disk.

    Its name is random and it must not exist, so nobody can plant a link there, and two processes that write the same
    path do not mix their contents.
    """
    _check_replaceable(path)
    partial = path.with_name(f".{path.name[:200]}.{secrets.token_hex(8)}{SUFFIX}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with open(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            # The disk may be full, and an incomplete file only takes up space.
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        if error.filename in (None, os.fspath(partial)):
            error.filename, error.filename2 = os.fspath(path), None
        raise


def write_atomic(path: Path, content: bytes | memoryview) -> None:
    """Write a whole file, or leave it as it was."""
    with open_atomic(path) as file:
        file.write(content)


def write_csv(path: Path, frame: "pl.DataFrame") -> None:
    """Write a frame as CSV; no text in it can be taken for a formula."""
    import polars as pl

    texts = pl.col(pl.String).map_elements(escape_spreadsheet, return_dtype=pl.String)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, frame.with_columns(texts).write_csv().encode())


def read_regular(path: Path, limit: int | None = 2**30, *, follow_links: bool = True) -> bytes:
    """Return the content of a regular file; a pipe or device, which may never end, is an error.

    Args:
        limit: number of bytes that the file may have; by default, more than any text needs.
        follow_links: without it, a link is an error.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such file.
    """
    # Opening a pipe that nobody writes to would block forever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if not follow_links:
        if path.is_symlink():
            raise DomainwiseError(f"{path} is a link; expected the file itself")
        flags |= getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        _check_regular(path, status)
        if limit is not None and status.st_size > limit:
            raise DomainwiseError(f"{path} has {status.st_size:,} bytes; at most {limit:,} are read")
        return file.read()


def check_regular(path: Path) -> None:
    """Raise an error if there is something other than a regular file, which cannot be read or replaced."""
    with suppress(FileNotFoundError, NotADirectoryError):
        _check_regular(path, os.stat(path))


def _check_replaceable(path: Path) -> None:
    """Raise an error if replacing `path` would destroy something other than a file, such as /dev/null."""
    folder = os.path.realpath(path.parent)
    if folder == "/dev" or folder.startswith("/proc/"):
        # /dev/stdout may well lead to a regular file, but is not one.
        raise DomainwiseError(f"{path} is not a regular file; choose another output")
    check_regular(path)


def _check_regular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
    raise DomainwiseError(f"{path} is {kind}")


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
        lock.acquire(timeout=_PATIENCE, poll_interval=_PATIENCE / 10)
    except Timeout as error:
        if on_wait is None:
            raise LockedError(str(file)) from error
        on_wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def is_locked(file: Path) -> bool:
    """Return whether a process holds the lock of `file`; nothing is written, and the file need not exist."""
    if os.name == "nt":
        try:
            with hold_lock(file) if file.exists() else nullcontext():
                return False
        except LockedError:
            return True
    import fcntl

    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # Shared, so that two readers do not take each other for a process that trains.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _sync_folder(folder: Path) -> None:
    # The rename itself is durable only once the folder is. Windows cannot open folders and does not need this.
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
