"""One process at a time."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl


@contextmanager
def one_at_a_time(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Holds the lock file `path`; calls `on_wait` if another process has it, and waits. On Windows there is no lock."""
    # The system takes the lock from a process that dies. The file stays: removed, two could hold two files of a name.
    with open(path, "ab") as file:
        if sys.platform != "win32":
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
