"""`domainwise demo`: every method of the family at several radii, under growing shift."""

import itertools
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from domainwise.cli.console import DataProgress, interruptible
from domainwise.data import silhouettes
from domainwise.errors import DomainwiseError
from domainwise.reproduction.demo import METHODS, RADII, STEPS, Line, Plan, Row, draw, lines, table_of, write_demo_page
from domainwise.sweeps.engine import EngineCallbacks
from domainwise.sweeps.local_engine import run_all
from domainwise.training import RunResult, load_algorithm

EXAMPLES = """
Examples:

domainwise demo

domainwise demo --seeds 3 --markdown

domainwise demo --methods erm,mat --radii 0.5,1 --variant released --output runs/demo-released

domainwise demo --schedule simultaneous
"""


def demo(
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(help="How many seeds to average over.")] = 1,
    radii: Annotated[str, typer.Option(help="Radii of the perturbations.")] = ",".join(map(str, RADII)),
    methods: Annotated[str | None, typer.Option(help="Methods to compare; by default all that can.")] = None,
    variant: Annotated[str, typer.Option(help="standard, paper or released.")] = "standard",
    schedule: Annotated[str, typer.Option(help="two_pass or simultaneous; at has only the first.")] = "two_pass",
    steps: Annotated[int, typer.Option(help="Updates of each run.")] = STEPS,
    workers: Annotated[int, typer.Option(help="Processes, of one thread each.")] = 2,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the runs are kept.")] = Path("runs/demo"),
    picture: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo.png"),
    page: Annotated[Path, typer.Option(help="Where the page with the whole result goes.")] = Path("demo.html"),
    pictures: Annotated[
        bool, typer.Option("--pictures/--no-pictures", help="Grad-CAM, perturbations and attacks on the page.")
    ] = True,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown too.")] = False,
) -> None:
    """Train ERM, AT, UAT, MAT and LDAT on the embedded images and show how each holds up as the shift grows.

    The test domains lay patterns over the images that training never saw, of norm 0 to 16. Finished runs are kept:
    a second call prints at once, and a stopped one goes on.
    """
    plan = Plan(
        methods=_methods(methods, schedule),
        radii=_numbers(radii, "--radii"),
        seed=seed,
        seeds=seeds,
        variant=variant,
        schedule=schedule,
        steps=steps,
        output=output,
    )
    if workers < 1:
        raise DomainwiseError(f"--workers must be at least 1, not {workers}")
    console = Console()
    results = _run(plan, workers, console)
    table = lines({row: [result.last for of, result in results if of == row] for row in plan.rows()})
    console.print(_as_table(table, plan))
    if markdown:
        print(table_of(table))
    shown = {
        row: load_algorithm(next(result.folder for of, result in results if of == row)) for row in _middle_rows(plan)
    }
    draw(picture, table, silhouettes(plan.seed), shown, f"Accuracy under unseen shift ({plan.title()})")
    with DataProgress(console) as progress:
        write_demo_page(page, plan, table, results, has_pictures=pictures, on_progress=progress.report)
    console.print(f"picture: {picture}", highlight=False, soft_wrap=True)
    console.print(f"page: {page}", highlight=False, soft_wrap=True)


def _run(plan: Plan, workers: int, console: Console) -> list[tuple[Row, RunResult]]:
    rows, configs = zip(*plan.configs(), strict=True)
    done_steps = [0] * len(configs)
    count = itertools.count(1)
    progress = Progress(
        TextColumn("{task.fields[done]}/{task.fields[runs]} runs"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} steps"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
    )
    with interruptible() as is_interrupted, progress:
        task = progress.add_task("", total=plan.steps * len(configs), done=0, runs=len(configs))

        def on_progress(run: int, step: int) -> None:
            done_steps[run] = step
            progress.update(task, completed=sum(done_steps))

        def on_done(run: int, result: RunResult) -> None:
            on_progress(run, plan.steps)
            finished = next(count)
            progress.update(task, done=finished)
            progress.console.print(f"{finished:>3}/{len(configs)} {result.folder.name}", highlight=False)

        callbacks = EngineCallbacks(on_progress, on_done, should_stop=is_interrupted)
        results = [result for result in run_all(configs, callbacks, workers=workers) if result is not None]
    return list(zip(rows, results, strict=True))


def _as_table(table: list[Line], plan: Plan) -> Table:
    shown = Table(
        title=f"Accuracy at each shift ({plan.title()})",
        caption="* training-domain holdout would choose this radius (the smaller on a tie)",
        box=box.SIMPLE_HEAD,
        header_style="bold",
    )
    for head in ("method", "radius", "loss", "holdout", *(f"at {shift:g}" for shift in table[0].shifted)):
        shown.add_column(head, justify="left" if head == "method" else "right", no_wrap=True)
    previous = table[0].row.method
    for line in table:
        if line.row.method != previous:
            shown.add_section()
        previous = line.row.method
        shown.add_row(
            line.row.method + (" *" if line.is_chosen else ""),
            "" if line.row.radius is None else f"{line.row.radius:g}",
            f"{line.loss:.3f}",
            f"{line.holdout:.3f}",
            *(f"{accuracy:.3f}" for accuracy in line.shifted.values()),
        )
    return shown


def _middle_rows(plan: Plan) -> list[Row]:
    """Each method at its middle radius: whose perturbations the picture shows."""
    radius = sorted(plan.radii)[(len(plan.radii) - 1) // 2]
    return [row for row in plan.rows() if row.radius == radius]


def _methods(words: str | None, schedule: str) -> list[str]:
    if words is None:
        return [method for method in METHODS if schedule == "two_pass" or method != "at"]
    return [word.strip() for word in words.split(",") if word.strip()]


def _numbers(text: str, option: str) -> list[float]:
    try:
        return list(dict.fromkeys(float(word) for word in text.split(",") if word.strip()))
    except ValueError as error:
        raise DomainwiseError(f"{option} takes numbers with commas between, not {text!r}") from error
