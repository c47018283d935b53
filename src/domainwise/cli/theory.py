"""`domainwise theory`: what the paper's theory claims, and what exact mathematics says to it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from domainwise.errors import DomainwiseError
from domainwise.reports.formats import as_markdown
from domainwise.storage.files import write_atomic

EXAMPLES = """
Examples:

domainwise theory

domainwise theory --out theory --radius 0.5 --beta 2
"""
HEAD = ("claim", "verdict", "what was found")
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
    # At a radius of 1 nothing is separable any more, and near it the weights grow without end.
    if not (0 < radius <= 0.9 and radius < beta):
        raise DomainwiseError(f"radius must be above 0, at most .9 and below beta, not {radius:g}")
    # Imported here because scipy takes a while, and no other command needs it.
    from domainwise.figures import as_bytes
    from domainwise.theory.claims import findings
    from domainwise.theory.figures import draw_all

    if not markdown:
        _make(out)
    console = Console()
    with console.status("following the flows ..."):
        found = findings(radius, beta)
    if markdown:
        rows = [(finding.claim, f"**{finding.verdict}**", finding.evidence) for finding in found]
        print(as_markdown(HEAD, rows))
        return
    table = Table(*HEAD, header_style="bold", show_lines=True)
    for finding in found:
        colour = _COLOURS[finding.verdict]
        table.add_row(finding.claim, f"[{colour}]{finding.verdict}[/{colour}]", finding.evidence)
    console.print(table)
    content = {"radius": radius, "beta": beta, "findings": [asdict(finding) for finding in found]}
    files = {"theory.json": json.dumps(content, indent=2).encode()}
    with console.status("drawing ..."):
        for name, figure in draw_all(radius, beta).items():
            for kind in ("png", "svg"):
                files[f"{name}.{kind}"] = as_bytes(figure, kind)
    try:
        for name, written in files.items():
            write_atomic(out / name, written)
    except OSError as error:
        raise DomainwiseError(f"{out} cannot be written to: {error}") from error
    console.print(f"[bold]done[/bold]: {', '.join(files)} in {out}", highlight=False, soft_wrap=True)


def _make(out: Path) -> None:
    """Make the folder before the work, so that a wrong one is told at once."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DomainwiseError(f"{out} cannot be written to: {error}") from error
