"""Processes that tests start: with default signal handling, and always with an end."""

import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def start_child(words: Sequence[object], *, seconds: float = 240, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process; after the block, or after so many seconds, it is killed.

    Args:
        options: of `subprocess.Popen`; by default, stdout and stderr are pipes.
    """
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    with subprocess.Popen([str(word) for word in words], preexec_fn=restore_signals, **options) as process:
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            process.kill()


def restore_signals() -> None:
    """Handle signals as a terminal's foreground process does: a test run in the background ignores some of them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
