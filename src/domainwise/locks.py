"""One process at a time: a lock that the system lets go of when its holder dies."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


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
