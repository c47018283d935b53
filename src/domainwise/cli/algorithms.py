"""`domainwise algorithms`: the methods, and the hyperparameters of one."""

import inspect
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from domainwise.algorithms import ALGORITHMS, Algorithm
from domainwise.errors import unknown
from domainwise.reports.formats import as_markdown

EXAMPLES = """
Examples:

domainwise algorithms

domainwise algorithms mat

domainwise algorithms irm --markdown
"""


def algorithms(
    name: Annotated[str | None, typer.Argument(help="Show this method's hyperparameters.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The tables as they stand in the docs.")] = False,
) -> None:
    """List the methods, or one method's hyperparameters with their defaults and search ranges."""
    if name is None:
        print(overview("docs/methods/") if markdown else _list())
        return
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS)
    kind = ALGORITHMS[name]
    if markdown:
        print(hparams_table(kind))
        return
    print(f"{name}: {summary(kind)} ({kind.source}; {_domains(kind)})\n")
    table = Table("hyperparameter", "default", "search", box=None, header_style="bold")
    for row in _hparams_rows(kind):
        table.add_row(*row)
    Console().print(table)
    print(f"\n{inspect.getdoc(kind.Hparams)}")
    for variant, settings in kind.Hparams.VARIANTS.items():
        print(f"variant {variant} sets " + ", ".join(f"{key}={value}" for key, value in settings.items()))


def overview(cards: str) -> str:
    """The methods as a markdown table with links to their cards, which are in the folder `cards`."""
    rows = [
        (f"[`{name}`]({cards}{name}.md)", summary(kind), _domains(kind), kind.source)
        for name, kind in ALGORITHMS.items()
    ]
    return as_markdown(("name", "method", "needs", "source"), rows)


def hparams_table(kind: type[Algorithm]) -> str:
    """A method's hyperparameters as a markdown table."""
    rows = [(f"`{name}`", default, search) for name, default, search in _hparams_rows(kind)]
    return as_markdown(("hyperparameter", "default", "search"), rows)


def summary(thing: object) -> str:
    """The first line of a docstring."""
    return (thing.__doc__ or "").strip().splitlines()[0]


def _list() -> str:
    # Plain lines: a table would fold them to the width of the window.
    width = max(map(len, ALGORITHMS)) + 2
    return "\n".join(f"{name:<{width}}{summary(kind)}" for name, kind in ALGORITHMS.items())


def _domains(kind: type[Algorithm]) -> str:
    return "1 domain" if kind.min_domains == 1 else f"{kind.min_domains} domains"


def _hparams_rows(kind: type[Algorithm]) -> list[tuple[str, str, str]]:
    return [
        (field.name, _shown(field.default), str(field.metadata.get("search", "")))
        for field in kind.Hparams.names().values()
    ]


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
