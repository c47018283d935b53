"""`domainwise demo`: every method of the family at several radii, under growing shift."""

from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli.console import make_console, print_line, print_table, print_text
from domainwise.cli.options import Quiet, Workers
from domainwise.cli.reproduce import print_result, show_progress

EXAMPLES = """
Examples:

domainwise demo

domainwise demo --trials 3 --markdown

domainwise demo --algorithm erm --algorithm mat --radius 0.5 --radius 1 --variant released -o runs/demo-released

domainwise demo --schedule simultaneous
"""


def demo(
    algorithm: Annotated[
        list[str] | None, typer.Option(help="Method: erm, at, uat, mat or ldat (default: all). Repeatable.")
    ] = None,
    radius: Annotated[
        list[float] | None, typer.Option(help="Radius of the perturbations (default: 0.2, 0.5 and 1). Repeatable.")
    ] = None,
    variant: Annotated[str, typer.Option(help="Variant of the methods: standard, paper or released.")] = "standard",
    schedule: Annotated[
        str, typer.Option(help="Schedule of the updates: two_pass or simultaneous (not for at).")
    ] = "two_pass",
    seed: Annotated[int, typer.Option(help="First seed.")] = 0,
    trials: Annotated[int, typer.Option(help="Number of seeds to average over.")] = 1,
    steps: Annotated[int, typer.Option(help="Training steps per run.")] = 700,
    workers: Workers = 2,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for runs, picture and page.")] = Path(
        "runs/demo"
    ),
    pictures: Annotated[
        bool, typer.Option("--pictures/--no-pictures", help="Show Grad-CAM, perturbations and attacks on the page.")
    ] = True,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train ERM, AT, UAT, MAT and LDAT on synthetic images and compare them as the shift grows.

    The test domains add patterns of norm 0 to 16 that training never saw. Rerun the same command to resume; finished
    runs are not repeated.
    """
    from domainwise.reproduction.demo import run_demo
    from domainwise.sweeps.runner import make_engine

    with show_progress(make_console(quiet, stderr=True)) as callbacks:
        result = run_demo(
            output,
            algorithms=algorithm or (),
            radii=radius or (),
            variant=variant,
            schedule=schedule,
            seed=seed,
            trials=trials,
            steps=steps,
            pictures=pictures,
            engine=make_engine(workers=workers),
            callbacks=callbacks,
        )
    if markdown:
        for table in result.tables:
            print_table(table.header, table.rows, table.numeric, is_markdown=True)
            print_text()
    elif not quiet:
        print_result(result)
    if not quiet:
        files = {file.suffix: file for file in result.files}
        print_line(f"picture: {files['.png']}")
        print_line(f"page: {files['.html']}")
