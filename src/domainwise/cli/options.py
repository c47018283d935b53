"""Words of the command line to values: `name=value` pairs and lists."""

import ast
from collections.abc import Collection, Sequence
from typing import Any

from typer.core import TyperGroup

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


class ManyValues(TyperGroup):
    """A command whose repeatable options take all the words that follow, so that each need not be repeated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        repeatable = {word for each in self.params if getattr(each, "multiple", False) for word in each.opts}
        return super().parse_args(ctx, spread(args, repeatable, self.commands))


def spread(words: Sequence[str], repeatable: Collection[str], commands: Collection[str] = ()) -> list[str]:
    """`["--algorithms", "erm", "mat"]` to `["--algorithms", "erm", "--algorithms", "mat"]`.

    The word right after an option is always its value; the values end at the next option or at a command's name.
    """
    result: list[str] = []
    option, is_first = "", False
    for word in words:
        if is_first:
            result.append(word)
            is_first = False
        elif word in repeatable:
            result.append(word)
            option, is_first = word, True
        elif option and not word.startswith("-") and word not in commands:
            result += [option, word]
        else:
            result.append(word)
            option = ""
    return result
