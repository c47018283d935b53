"""One process at a time: a lock that the system lets go of when its holder dies."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LockedError(Exception):
    """Another process holds the lock."""


@contextmanager
def locked(file: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of `file` inside; where another process has it, wait for it or raise `LockedError`."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock; two processes at the same work are then the user's to avoid.
        yield
        return
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            raise LockedError(str(file)) from error
        yield
    finally:
        os.close(descriptor)
