"""`domainwise datasets`: the datasets, and the domains and options of one."""

import inspect
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from domainwise.cli.algorithms import summary
from domainwise.data import DATASETS
from domainwise.errors import unknown

EXAMPLES = """
Examples:

domainwise datasets

domainwise datasets silhouettes
"""


def datasets(
    name: Annotated[str | None, typer.Argument(help="Show its domains and options.")] = None,
) -> None:
    """List the datasets, or one dataset's domains and options."""
    console = Console()
    if name is None:
        table = Table("dataset", "what it holds", box=None, header_style="bold")
        for key, builder in DATASETS.items():
            table.add_row(key, summary(builder))
        console.print(table)
        return
    if name not in DATASETS:
        raise unknown("dataset", name, DATASETS)
    print(inspect.getdoc(DATASETS[name]))
    dataset = DATASETS[name]()
    table = Table("domain", "role", "images", *dataset.classes, box=None, header_style="bold")
    for domain in dataset.domains:
        counts = [str(int((domain.labels == index).sum())) for index in range(len(dataset.classes))]
        table.add_row(domain.name, domain.role or "", str(len(domain)), *counts)
    console.print()
    console.print(table)
    options = inspect.signature(DATASETS[name]).parameters.values()
    defaults = ", ".join(f"{option.name}={option.default}" for option in options if option.name != "seed")
    console.print(f"\noptions (--dataset-option name=value): {defaults}", highlight=False)
