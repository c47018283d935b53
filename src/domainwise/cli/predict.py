"""`domainwise predict`: what a trained model sees in image files."""

import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from domainwise.errors import unknown
from domainwise.storage.files import write_atomic
from domainwise.training import RunFolder, load_model
from domainwise.training.device import pick_device
from domainwise.training.prediction import Prediction, image_files_at, predictions

EXAMPLES = """
Examples:

domainwise predict runs/pacs-mat photo.jpg

domainwise predict runs/pacs-mat photos/ more/*.png --top 3

domainwise predict runs/pacs-mat photos/ --format csv --output classes.csv
"""
FORMATS = ("table", "csv", "json")


def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders with images below them.")],
    which: Annotated[str, typer.Option(help="`best` (by what selects models) or `last`.")] = "best",
    top: Annotated[int, typer.Option(help="How many of the likeliest classes the table shows.")] = 1,
    format_: Annotated[str, typer.Option("--format", help="table, csv or json; the last two hold every class.")] = (
        "table"
    ),
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write csv or json into this file.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Tell the class of images and how probable it is. A file that cannot be read is said so; exit code 1 then."""
    if format_ not in FORMATS:
        raise unknown("format", format_, FORMATS)
    if output is not None and format_ == "table":
        format_ = "json" if output.suffix.lower() == ".json" else "csv"
    data = RunFolder(run).read_config()["data"]
    model = load_model(run, which)  # type: ignore[arg-type]  # which is checked there
    files = image_files_at(images)
    found = predictions(model, files, data["classes"], data["input_shape"], pick_device(device))
    errors = Console(stderr=True)
    made = list(track(found, "looking at images", total=len(files), console=errors, transient=True))
    if format_ == "table":
        _show(made, max(1, top))
    else:
        text = _as_csv(made, data["classes"]) if format_ == "csv" else _as_json(made)
        if output is None:
            sys.stdout.write(text)
        else:
            write_atomic(output, text.encode())
            errors.print(f"wrote {output}", highlight=False)
    faults = [each for each in made if each.fault]
    for each in faults:
        errors.print(f"{each.file} {each.fault}", style="red", highlight=False, soft_wrap=True)
    if faults:
        raise typer.Exit(1)


def _show(made: Sequence[Prediction], top: int) -> None:
    console = Console()
    table = Table("image", "class", box=None, header_style="bold")
    table.add_column("probability", justify="right")
    for each in made:
        likeliest = sorted(each.probabilities.items(), key=lambda pair: -pair[1])[:top]
        for place, (name, probability) in enumerate(likeliest):
            table.add_row(Text(str(each.file) if place == 0 else ""), Text(name), f"{probability:.1%}")
    if table.rows:
        console.print(table)


def _as_csv(made: Sequence[Prediction], classes: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("image", "class", "probability", *classes, "fault"))
    for each in made:
        values = [each.probabilities.get(name) for name in classes]
        writer.writerow((each.file, each.label, each.probabilities.get(each.label), *values, each.fault))
    return text.getvalue()


def _as_json(made: Sequence[Prediction]) -> str:
    rows = [
        {
            "image": str(each.file),
            "class": each.label or None,
            "probability": each.probabilities.get(each.label),
            "probabilities": each.probabilities,
            "fault": each.fault or None,
        }
        for each in made
    ]
    return json.dumps(rows, indent=1) + "\n"
