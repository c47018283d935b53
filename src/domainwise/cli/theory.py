"""`domainwise theory`: what the paper's theory claims, and what exact mathematics says to it."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from domainwise.cli.algorithms import as_markdown
from domainwise.errors import DomainwiseError

if TYPE_CHECKING:
    from domainwise.theory import Finding

EXAMPLES = """
Examples:

domainwise theory

domainwise theory --out theory --radius 0.5 --beta 2
"""
_COLOURS = {"holds": "green", "fails": "red", "depends": "yellow"}


def theory(
    out: Annotated[Path, typer.Option(help="Where the figures and theory.json go.")] = Path("theory"),
    radius: Annotated[float, typer.Option(help="Of the adversaries, in units of x_inv.")] = 0.3,
    beta: Annotated[float, typer.Option(help="Size of the spurious feature.")] = 1.0,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Only print the table, as it stands in the docs.")
    ] = False,
) -> None:
    """Hold the paper's section 4.3 and appendix A against exact bounds and dynamics: a table, figures, theory.json."""
    if not 0 < radius < min(1.0, beta):
        raise DomainwiseError(f"radius must be above 0 and below 1 and beta, not {radius:g}")
    # Imported here because the other commands need neither scipy nor matplotlib.
    from domainwise.runs.atomic import write_atomically
    from domainwise.theory.figures import draw_all
    from domainwise.theory.findings import findings

    console = Console()
    with console.status("following the flows ..."):
        found = findings(radius, beta)
    if markdown:
        print(table_of(found))
        return
    table = Table("claim", "verdict", "what was found", header_style="bold", show_lines=True)
    for finding in found:
        colour = _COLOURS[finding.verdict]
        table.add_row(finding.claim, f"[{colour}]{finding.verdict}[/{colour}]", finding.evidence)
    console.print(table)
    out.mkdir(parents=True, exist_ok=True)
    content = {"radius": radius, "beta": beta, "findings": [asdict(finding) for finding in found]}
    write_atomically(out / "theory.json", json.dumps(content, indent=2).encode())
    with console.status("drawing ..."):
        files = draw_all(out, radius, beta)
    console.print(f"[bold]done[/bold]: {out / 'theory.json'} and {len(files)} figures", highlight=False, soft_wrap=True)


def table_of(found: "Sequence[Finding]") -> str:
    """The findings as a markdown table; a bar would end a cell."""
    rows = [(finding.claim, f"**{finding.verdict}**", finding.evidence) for finding in found]
    return as_markdown(
        ("claim", "verdict", "what was found"), [[cell.replace("|", "\\|") for cell in row] for row in rows]
    )
