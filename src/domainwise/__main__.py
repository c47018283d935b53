"""`python -m domainwise` is the command line; of the processes that torchrun starts only the first prints."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

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


if __name__ == "__main__":
    with only_first_speaks():
        main()
