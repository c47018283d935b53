"""The errors that a user is meant to read, and names in them."""

import re
import shlex
from collections.abc import Iterable
from difflib import get_close_matches

from domainwise.escaping import escape_unprintable


class DomainwiseError(ValueError):
    """An input that domainwise cannot use. The message is one line that says what to change."""


class ProcessLost(DomainwiseError):
    """Of several processes that share a run, another has ended. Each that remains says so, as the first may be gone."""


class RunInterrupted(Exception):
    """Training was asked to stop and saved its state; the same call resumes it."""


def format_error(error: DomainwiseError | OSError) -> str:
    """Return the one line that the command line prints for an error that the user can fix."""
    if isinstance(error, OSError) and error.filename is not None:
        return escape_unprintable(f"{error.filename}: {error.strerror}")
    return escape_unprintable(" ".join(str(error).split()))


def suggest_install(extra: str) -> str:
    """Return how to install the packages of an optional extra.

    The packages themselves, because no index has to have domainwise; pyproject.toml says which.
    """
    import importlib.metadata

    try:
        requirements = importlib.metadata.requires("domainwise") or []
    except importlib.metadata.PackageNotFoundError:
        return f"install the packages of the extra {extra!r} in pyproject.toml"
    packages = [each.partition(";")[0] for each in requirements if re.search(f"extra == ['\"]{extra}['\"]", each)]
    return f"install it with: pip install {shlex.join(packages)}"


def unknown_choice(kind: str, name: str, choices: Iterable[str], summary: str | None = None) -> DomainwiseError:
    """Return the error for an unknown name, with the nearest spelling and the choices.

    Args:
        summary: a description of the choices, if there are too many to list.
    """
    names = list(choices)
    nearest = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
    return DomainwiseError(f"unknown {kind} {name!r}{hint} Choices: {summary or ', '.join(names)}")
