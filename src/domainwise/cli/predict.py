"""`domainwise predict`: classes of image files by a trained model."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from domainwise.cli.console import DataProgress, make_console, print_line, print_table, print_text
from domainwise.cli.options import Device, OwnAlgorithm, OwnNetwork, Quiet
from domainwise.storage.files import write_atomic

if TYPE_CHECKING:
    from domainwise.storage.run_folder import Which
    from domainwise.training.prediction import Prediction

EXAMPLES = """
Examples:

domainwise predict runs/pacs-mat photo.jpg

domainwise predict runs/pacs-mat photos/ more/*.png --top 3

domainwise predict runs/pacs-mat photos/ --output classes.csv

domainwise predict hf:owner/name photo.jpg
"""


def predict(
    run: Annotated[str, typer.Argument(help="Run folder, or hf:owner/name.")],
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders with images below them.")],
    which: Annotated[str, typer.Option(help="Model of the run: best (as selected) or last.")] = "best",
    top: Annotated[int, typer.Option(help="Number of most probable classes to show per image.")] = 1,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the probabilities of all classes: .csv or .json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the probabilities of all classes as JSON.")] = False,
    algorithm: OwnAlgorithm = None,
    network: OwnNetwork = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Predict the class of images. Files that could not be read are reported, with exit code 1."""
    from domainwise.training.prediction import check_prediction_format, format_predictions, predict_images

    file_format = None if output is None else check_prediction_format(output)
    with DataProgress(make_console(quiet, stderr=True)) as progress:
        predictions = predict_images(
            run,
            images,
            which=cast("Which", which),
            algorithm=algorithm,
            network=network,
            device=device,
            on_progress=progress.report,
        )
    if output is not None and file_format is not None:
        write_atomic(output, format_predictions(predictions, file_format).encode())
    if as_json:
        print_text(format_predictions(predictions, "json"), end="")
    elif output is None and not quiet:
        _print_predictions(predictions, max(1, top))
    if output is not None and not quiet:
        print_line(f"wrote {output}", stderr=True)
    failures = [each for each in predictions if each.error]
    for each in failures:
        print_line(f"error: {each.file} {each.error}", stderr=True)
    if failures:
        raise typer.Exit(1)


def _print_predictions(predictions: Sequence["Prediction"], top: int) -> None:
    rows = [
        (str(each.file) if place == 0 else "", name, f"{probability:.1%}")
        for each in predictions
        for place, (name, probability) in enumerate(sorted(each.probabilities.items(), key=lambda pair: -pair[1])[:top])
    ]
    if rows:
        print_table(("image", "class", "probability"), rows, numeric=1)
