"""Names of a config to what they stand for, and back."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from domainwise.errors import DomainwiseError, unknown

T = TypeVar("T")


def found(kind: str, given: str | T, table: Mapping[str, T], others: Sequence[str] = (), shown: str = "") -> T:
    """What `given` names in `table` or as "package.module:Name"; a class or function is that itself.

    Args:
        others: names that belong to other tables, for the nearest right spelling.
        shown: the choices in words, where there are too many to list.
    """
    if not isinstance(given, str):
        return given
    if given in table:
        return table[given]
    module, colon, name = given.partition(":")
    if not colon:
        raise unknown(kind, given, (*table, *others), shown or None)
    try:
        imported: T = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise DomainwiseError(f"{kind} {given!r} cannot be imported: {error}") from error
    return imported


def name_of(thing: str | Callable[..., Any]) -> str:
    """A name as it is, and a class or function as where it can be imported from."""
    if isinstance(thing, str):
        return thing
    return f"{thing.__module__}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"
