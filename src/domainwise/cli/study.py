"""`domainwise study`: which method to use for one's own images."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli.console import make_console, print_json, print_table, print_text
from domainwise.cli.options import AsJson, DataDir, Device, Quiet, Workers
from domainwise.cli.reproduce import show_progress
from domainwise.selection.verdicts import MARGIN

EXAMPLES = """
Examples:

domainwise study photos/ --budget 60min

domainwise study photos/ --budget 20min --network mobilenet_v2 --image-size 64 --batch-size 16

domainwise study images.csv --budget 3h --margin 0.5 -o runs/images

domainwise study silhouettes --budget 5min
"""


def study(
    dataset: Annotated[
        str,
        typer.Argument(help="Folder root/domain/class/image, CSV file with columns path, label, domain, or a name."),
    ],
    budget: Annotated[str, typer.Option(help="Time to spend, such as 20min, 1h30min or 8h.")] = "1h",
    network: Annotated[
        str | None, typer.Option("--network", "--backbone", help="Network, as for `domainwise train`.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="Its initial weights, as for `domainwise train`.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side length of the images in pixels.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Batch size per domain.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates per run (default: what suits the budget).")] = None,
    trials: Annotated[int, typer.Option(help="Repetitions with different seeds, at most.")] = 100,
    margin: Annotated[float, typer.Option(help="Largest difference without practical importance, in points.")] = MARGIN,
    data_dir: DataDir = None,
    device: Device = "auto",
    workers: Workers = 2,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for runs and results (default: runs/study-NAME).")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find out which method to use for images of your own, and how sure that is, within a time budget.

    Checks the data, measures how far apart its domains are, holds out each domain in turn, and compares a short list of
    methods with plain ERM, trial by trial. Methods that fall behind get no more trials. Rerun the same command to
    continue. Ends with study.md and study.html.
    """
    from domainwise.reproduction.method_study import study as run_study
    from domainwise.sweeps.runner import make_engine
    from domainwise.training.registry import dataset_name

    console = make_console(quiet, stderr=True)
    with show_progress(console) as callbacks:
        result = run_study(
            dataset,
            output or Path("runs") / f"study-{dataset_name(dataset).replace(':', '.').replace('/', '.')}",
            budget=budget,
            network=network,
            weights=weights,
            image_size=image_size,
            batch_size=batch_size,
            steps=steps,
            max_trials=trials,
            margin=margin,
            data_dir=data_dir,
            device=device,
            workers=workers,
            engine=make_engine(workers=workers),
            callbacks=callbacks,
        )
    if as_json:
        print_json(
            {
                "dataset": result.dataset,
                "recommended": result.recommended,
                "advice": result.advice,
                "methods": {name: asdict(each) for name, each in result.judgements.items()},
                "shift": None if result.shift is None else result.shift.as_dict(),
                "notes": result.notes,
                "commands": result.commands,
                "files": result.files,
            }
        )
        return
    if quiet:
        return
    stdout = make_console()
    print_text()
    stdout.print_line((result.advice, "bold"))
    for command in result.commands:
        stdout.print_line(f"  {command}")
    for table in result.tables:
        print_text()
        stdout.print_line((table.title, "bold"))
        print_table(table.header, table.rows, table.numeric)
        for note in table.notes:
            stdout.print_line(note)
    print_text()
    stdout.print_line(f"wrote {', '.join(map(str, result.files))}")
