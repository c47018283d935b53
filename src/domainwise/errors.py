"""The one error a user is meant to read, and the nearest right spelling to put in it."""

from collections.abc import Iterable
from difflib import get_close_matches


class DomainwiseError(ValueError):
    """Something given to domainwise cannot be used. The message is one line for the person who gave it."""


class RunInterrupted(Exception):
    """What was under way was asked to stop and has saved its state; the same call goes on from there."""


def in_one_line(error: DomainwiseError | OSError) -> str:
    """What a person can put right: what was given, or what the system refuses, like writing to a full disk."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def unknown(kind: str, given: str, choices: Iterable[str], shown: str | None = None) -> DomainwiseError:
    """An error that names what was given, the nearest right name, and all the choices, or `shown` for too many."""
    names = list(choices)
    nearest = get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
    return DomainwiseError(f"unknown {kind} {given!r}{hint} Choices: {shown or ', '.join(names)}")
