"""`domainwise perturbations`: what runs learned to add to images, as pictures, and of what rank it is."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.console import Console

from domainwise.cli.console import DataProgress, print_table
from domainwise.explain.perturbations import Movement, Portrait, movement, portrait
from domainwise.explain.plots.perturbations import draw, draw_components
from domainwise.explain.plots.ranks import draw_ranks
from domainwise.explain.ranks import Ranks, ranks
from domainwise.explain.run_names import run_names
from domainwise.figures import write_figure
from domainwise.storage.files import write_atomic
from domainwise.training.device import pick_device
from domainwise.training.loading import open_run

EXAMPLES = """
Examples:

domainwise perturbations runs/mat

domainwise perturbations runs/at runs/uat runs/mat runs/ldat --output pictures --images 128

domainwise perturbations runs/mat --markdown --json mat.json
"""
HEAD = ("run", "method", "domain", "norm", "epsilon", "images", "rank", "effective", "rank of one", "effective")


def perturbations(
    run: Annotated[list[Path], typer.Argument(help="Folders of runs with at, uat, mat or ldat.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder that the pictures go to.")] = Path(
        "perturbations"
    ),
    images: Annotated[int, typer.Option(help="How many training images a domain the ranks are taken over.")] = 256,
    dataset: Annotated[str | None, typer.Option(help="The images, if the runs used some of one's own.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the datasets lie, as for train.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    json_: Annotated[Path | None, typer.Option("--json", help="Write all numbers into this file.")] = None,
) -> None:
    """Draw the perturbations of runs, a picture a run, and measure the rank of them: over images and within one."""
    errors = Console(stderr=True)
    folders = list({folder.resolve(): folder for folder in run}.values())
    found: list[tuple[Portrait, Movement, list[Ranks]]] = []
    for folder, name in zip(folders, run_names(folders), strict=True):
        with DataProgress(errors) as progress:
            opened = open_run(folder, dataset=dataset, data_dir=data_dir, on_data=progress.report)
        with errors.status(f"looking at {name} ...") as status:
            drawn = replace(portrait(opened), run=name)
            status.update(f"ranks of the perturbations of {name} ...")
            measured = ranks(opened, images, pick_device(device))
            found.append((drawn, movement(opened), [replace(each, run=name) for each in measured]))
    with errors.status("drawing ..."):
        files = _draw(found, output)
    if json_ is not None:
        write_atomic(json_, (json.dumps([_as_json(*each) for each in found], indent=1) + "\n").encode())
        files.append(json_)
    rows = [row for drawn, _, measured in found for row in _rows(drawn, measured)]
    print_table(HEAD, rows, numeric=7, is_markdown=markdown)
    errors.print(f"wrote {', '.join(map(str, files))}", highlight=False, soft_wrap=True)


def _draw(found: Sequence[tuple[Portrait, Movement, list[Ranks]]], output: Path) -> list[Path]:
    files = []
    for drawn, moved, _ in found:
        files.append(output / f"{drawn.run}.png")
        write_figure(files[-1], draw(drawn, moved))
        if drawn.components is not None:
            files.append(output / f"{drawn.run}-components.png")
            write_figure(files[-1], draw_components(drawn))
    files.append(output / "ranks.png")
    write_figure(files[-1], draw_ranks([each for _, _, measured in found for each in measured]))
    return files


def _rows(drawn: Portrait, measured: Sequence[Ranks]) -> list[tuple[str, ...]]:
    """A row a domain; of channels the highest rank, and the mean of effective ones."""
    return [
        (
            drawn.run,
            drawn.method,
            of.domain,
            f"{norm:.3g}",
            f"{drawn.epsilon:g}",
            str(of.images),
            str(max(of.stacked)),
            f"{fmean(of.stacked_effective):.1f}",
            str(of.single_most),
            f"{fmean(of.single_effective):.1f}",
        )
        for norm, of in zip(drawn.norms, measured, strict=True)
    ]


def _as_json(drawn: Portrait, moved: Movement, measured: Sequence[Ranks]) -> dict[str, Any]:
    weights = drawn.mixing_weights
    domains = [
        {
            "domain": of.domain,
            "norm": drawn.norms[index],
            "singular_values": drawn.singular_values[index].tolist(),
            "component_norms": None if drawn.components is None else drawn.component_norms[index].tolist(),
            "component_cosine": None if drawn.components is None else drawn.component_cosines[index],
            "mixing_weights": None if weights is None else weights[index].tolist(),
            "norm_over_training": [float(each[index]) for each in moved.norms],
            "cosine_to_last": [float(each[index]) for each in moved.to_last],
            "images": of.images,
            "rank": of.stacked,
            "effective_rank": of.stacked_effective,
            "rank_of_one": of.single,
            "effective_rank_of_one": of.single_effective,
        }
        for index, of in enumerate(measured)
    ]
    return {
        "run": drawn.run,
        "method": drawn.method,
        "epsilon": drawn.epsilon,
        "norm": drawn.norm,
        "is_kept": drawn.is_kept,
        "rank_limit": drawn.rank,
        "steps": moved.steps,
        "snapshot_steps": moved.kept_steps,
        "domains": domains,
    }
