"""`python -m domainwise` is the command line; of the processes that torchrun starts only the first prints."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import NoReturn

from domainwise.cli import main


@contextmanager
def only_first_speaks() -> Iterator[None]:
    """What other ranks would print is the same, and left out. An unexpected error still shows: it leaves the block."""
    # Told by torchrun's own variables: whoever only wants a table should not wait for torch.
    if int(os.environ.get("RANK", "0")) == 0:
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def leave(code: int) -> NoReturn:
    """End this process at once: what torch's threads do when an interpreter of several winds down can abort it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    code = 0
    try:
        with only_first_speaks():
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if "RANK" not in os.environ:
            raise
    if "RANK" in os.environ:
        leave(code)
