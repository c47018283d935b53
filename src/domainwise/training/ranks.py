"""What torchrun tells a process by environment variables. Imports no torch."""

import os

from domainwise.errors import DomainwiseError


def read_rank() -> int:
    """Return the rank of this process among those of torchrun; 0 without it."""
    rank, size = read_variable("RANK", 0), read_world_size()
    if rank >= size > 1:
        raise DomainwiseError(f"environment variable RANK must be below WORLD_SIZE={size}, got {rank}")
    return rank if size > 1 else 0


def read_world_size() -> int:
    """Return the number of processes that torchrun started; 1 without it."""
    return read_variable("WORLD_SIZE", 1) if "RANK" in os.environ else 1


def check_master() -> None:
    """Raise an error if the address at which the processes meet is incomplete."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise DomainwiseError(
                f"RANK and WORLD_SIZE={read_world_size()} are set, but not {name}; start with torchrun, or unset them"
            )
    read_variable("MASTER_PORT", 0)


def read_variable(name: str, default: int) -> int:
    """Return an environment variable that torchrun sets to an integer."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise DomainwiseError(
            f"environment variable {name} must be an integer of at least 0, got {text!r}; unset it, or use torchrun"
        )
    return int(text)
