"""Words of the command line to values: `name=value` pairs and lists."""

import ast
from collections.abc import Sequence
from typing import Any

from domainwise.errors import DomainwiseError


def pairs(words: Sequence[str], option: str) -> dict[str, str]:
    """`["epsilon=.5"]` to `{"epsilon": ".5"}`."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise DomainwiseError(f"{option} takes name=value, not {word!r}")
        found[name.strip()] = value.strip()
    return found


def literals(words: Sequence[str], option: str) -> dict[str, Any]:
    """The same with values read as Python literals where they are some: `image_size=48`, `shifts=0,8`."""
    return {name: _literal(value) for name, value in pairs(words, option).items()}


def _literal(word: str) -> Any:
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word
