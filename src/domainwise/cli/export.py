"""`domainwise export`: the model of a run as an ONNX or PT2 file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from domainwise.cli.console import make_console, print_line, show_status
from domainwise.cli.options import OwnAlgorithm, OwnNetwork, Quiet

if TYPE_CHECKING:
    from domainwise.storage.run_folder import Which

EXAMPLES = """
Examples:

domainwise export runs/pacs-mat --onnx model.onnx

domainwise export runs/pacs-mat --pt2 model.pt2 --which last

domainwise export hf:owner/name --onnx model.onnx
"""


def export(
    run: Annotated[str, typer.Argument(help="Run folder, or hf:owner/name.")],
    onnx: Annotated[Path | None, typer.Option(help="Write an ONNX file.")] = None,
    pt2: Annotated[Path | None, typer.Option(help="Write a file for torch.export.load.")] = None,
    which: Annotated[str, typer.Option(help="Model of the run: best (as selected) or last.")] = "best",
    algorithm: OwnAlgorithm = None,
    network: OwnNetwork = None,
    quiet: Quiet = False,
) -> None:
    """Export a model with resizing and normalization inside: uint8 RGB images of any size to probabilities.

    Each file is run on a few random images and compared with `predict` before it is written.
    """
    from domainwise.training.export import export_model

    with show_status(make_console(quiet, stderr=True), "loading the model") as update:
        exported = export_model(
            run,
            onnx=onnx,
            pt2=pt2,
            which=cast("Which", which),
            algorithm=algorithm,
            network=network,
            on_stage=update,
        )
    for each in exported if not quiet else []:
        print_line(
            f"wrote {each.path} ({each.size / 1e6:.1f} MB): uint8 images (batch, height, width, 3) -> probabilities of "
            f"{len(each.classes)} classes; largest difference from predict {each.difference:.1g}"
        )
