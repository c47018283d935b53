"""`domainwise theory`: the claims of the paper's theory, checked against exact bounds and dynamics."""

from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli.console import make_console, print_json, print_line, print_table, show_status, style_text
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

    with show_status(make_console(quiet, stderr=True), "solving the gradient flows ..."):
        result = check_theory(radius, beta, output=output)
    if as_json:
        print_json(result.to_json())
    elif markdown:
        rows = [(check.claim, f"**{check.verdict}**", check.evidence) for check in result.checks]
        print_table(HEADER, rows, is_markdown=True)
    elif not quiet:
        cells = [
            (check.claim, style_text(check.verdict, _COLORS[check.verdict]), check.evidence) for check in result.checks
        ]
        print_table(HEADER, cells, has_lines=True)
    if result.files and not quiet:
        print_line(f"wrote {', '.join(result.files)} to {output}", stderr=True)
