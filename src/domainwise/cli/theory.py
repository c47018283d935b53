"""`domainwise theory`: the claims of the paper's theory, checked against exact bounds and dynamics."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from domainwise.cli.console import print_json, print_table
from domainwise.cli.options import AsJson, Quiet

EXAMPLES = """
Examples:

domainwise theory

domainwise theory --output theory --radius 0.5 --beta 2
"""
HEADER = ("claim", "verdict", "evidence")
_COLORS = {"holds": "green", "does not hold": "red", "depends": "yellow"}


def theory(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write the figures and theory.json to.")
    ] = None,
    radius: Annotated[float, typer.Option(help="Radius of the adversaries, in units of x_inv.")] = 0.3,
    beta: Annotated[float, typer.Option(help="Size of the spurious feature.")] = 1.0,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Check the claims of the paper's section 4.3 and appendix A against exact bounds and dynamics."""
    # Imported here because scipy and matplotlib take a second.
    from domainwise.theory import check_theory

    with Console(stderr=True, quiet=quiet).status("solving the gradient flows ..."):
        result = check_theory(radius, beta, output=output)
    if as_json:
        print_json(result.to_json())
    elif markdown:
        rows = [(check.claim, f"**{check.verdict}**", check.evidence) for check in result.checks]
        print_table(HEADER, rows, numeric=0, is_markdown=True)
    elif not quiet:
        table = Table(*HEADER, header_style="bold", show_lines=True)
        for check in result.checks:
            color = _COLORS[check.verdict]
            table.add_row(check.claim, f"[{color}]{check.verdict}[/{color}]", check.evidence)
        Console().print(table)
    if result.files and not quiet:
        print(f"wrote {', '.join(result.files)} to {output}", file=sys.stderr)
