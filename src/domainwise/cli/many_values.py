"""Options that take several words: `--algorithms erm mat ldat`."""

from collections.abc import Collection, Sequence
from typing import Any

from typer.core import TyperGroup


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
