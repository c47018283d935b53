"""`python -m domainwise`: the command line. Of the processes that torchrun starts, only the first prints."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import NoReturn

from domainwise.cli import main


@contextmanager
def silence_other_ranks() -> Iterator[None]:
    """Discard what ranks other than the first print, which is the same. An unexpected error leaves the block."""
    # By torchrun's variables rather than torch, which takes seconds to import.
    if int(os.environ.get("RANK", "0")) == 0:
        yield
        return
    with open(os.devnull, "w") as null, redirect_stdout(null), redirect_stderr(null):
        yield


def exit_at_once(code: int) -> NoReturn:
    """End this process without shutting down the interpreter, during which torch's threads can abort it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    code = 0
    try:
        with silence_other_ranks():
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if "RANK" not in os.environ:
            raise
    if "RANK" in os.environ:
        exit_at_once(code)
