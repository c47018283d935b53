"""`domainwise algorithms`: the methods, and the hyperparameters of one."""

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from domainwise.algorithms import ALGORITHMS
from domainwise.errors import unknown

EXAMPLES = """
Examples:

domainwise algorithms

domainwise algorithms mat
"""


def algorithms(name: Annotated[str | None, typer.Argument(help="Show this method's hyperparameters.")] = None) -> None:
    """List the methods, or one method's hyperparameters with their defaults and search ranges."""
    if name is None:
        _print(["method", "what it does"], [(key, summary(kind)) for key, kind in ALGORITHMS.items()])
        return
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS)
    kind = ALGORITHMS[name]
    print(f"{name}: {summary(kind)}\n")
    rows = [
        (field.name, str(field.default), str(field.metadata.get("search", "")))
        for field in kind.Hparams.names().values()
    ]
    _print(["hyperparameter", "default", "search"], rows)
    for variant, settings in kind.Hparams.VARIANTS.items():
        print(f"variant {variant} sets " + ", ".join(f"{key}={value}" for key, value in settings.items()))


def summary(thing: object) -> str:
    """The first line of a docstring."""
    return (thing.__doc__ or "").strip().splitlines()[0]


def _print(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(*head, box=None, header_style="bold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
