"""The errors that a user is meant to read, and names in them."""

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches


class DomainwiseError(ValueError):
    """An input that domainwise cannot use. The message is one line that says what to change."""


class ProcessLost(DomainwiseError):
    """Of several processes that share a run, another has ended. Each that remains says so, as the first may be gone."""


class RunInterrupted(Exception):
    """Training was asked to stop and saved its state; the same call resumes it."""


def format_error(error: DomainwiseError | OSError) -> str:
    """Return the one line that the command line prints for an error that the user can fix."""
    if isinstance(error, OSError) and error.filename is not None:
        return escape_name(f"{error.filename}: {error.strerror}")
    return escape_name(" ".join(str(error).split()))


_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def escape_name(name: object) -> str:
    r"""Return a name or path as text that any terminal and file takes: other bytes become escapes such as `\xff`.

    A file may have any bytes in its name. Those that are not UTF-8 are lone surrogates in Python, which cannot be
    written, and control characters can do anything to a terminal.
    """
    return _UNPRINTABLE.sub(lambda match: _escape_character(match[0]), str(name))


def _escape_character(character: str) -> str:
    try:
        return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return f"\\u{ord(character):04x}"


def unknown_choice(kind: str, name: str, choices: Iterable[str], summary: str | None = None) -> DomainwiseError:
    """Return the error for an unknown name, with the nearest spelling and the choices.

    Args:
        summary: a description of the choices, if there are too many to list.
    """
    names = list(choices)
    nearest = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
    return DomainwiseError(f"unknown {kind} {name!r}{hint} Choices: {summary or ', '.join(names)}")
