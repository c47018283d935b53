"""`domainwise explain`: where runs look, as a picture, and how much of that lies on the object."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer
from rich.console import Console

from domainwise.cli.console import DataProgress, print_table
from domainwise.errors import DomainwiseError, unknown
from domainwise.explain.attention import (
    Attention,
    AttentionTable,
    Explained,
    attention_of_run,
    attention_table,
)
from domainwise.explain.plots.gradcam import Examples, draw_grad_cam, examples_of
from domainwise.explain.run_names import labels
from domainwise.figures import KINDS, write_figure
from domainwise.reports.cells import METHOD_ORDER
from domainwise.storage.discovery import discover
from domainwise.storage.run_folder import RunFolder, Which
from domainwise.training.device import pick_device
from domainwise.training.loading import OpenRun, open_run

EXAMPLES = """
Examples:

domainwise explain runs/erm runs/mat runs/ldat --domain shift_12

domainwise explain runs/demo --images 8 --classes true --output maps.svg

domainwise explain sweeps/pacs --domain sketch --layer featurizer.model.layer3 --no-table
"""


def explain(
    run: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders with runs below them.")],
    domain: Annotated[
        str | None, typer.Option(help="Whose images the picture shows; by default the last test domain.")
    ] = None,
    images: Annotated[int, typer.Option(help="How many, drawn from its main part.")] = 6,
    classes: Annotated[str, typer.Option(help="The class that is explained: `predicted` or `true`.")] = "predicted",
    which: Annotated[str, typer.Option(help="`best` (by what selects models) or `last`.")] = "best",
    layer: Annotated[str | None, typer.Option(help="The layer to look at; by default the last with a map.")] = None,
    seed: Annotated[int, typer.Option(help="Draws the images.")] = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture: png, svg or pdf.")] = Path("explain.png"),
    data_dir: Annotated[
        Path | None, typer.Option(help="Where the datasets lie; otherwise $DOMAINWISE_DATA, or the user's cache.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="The runs' images, if they used their own.")] = None,
    table: Annotated[
        bool, typer.Option("--table/--no-table", help="Measure attention on the object, where masks are known.")
    ] = True,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Show where runs look in the same images (Grad-CAM), and how much of their attention lies on the object.

    Runs must share a dataset. The table takes their mean over seeds; the picture shows the runs of the lowest one.
    """
    for what, given, choices in (
        ("classes", classes, get_args(Explained)),
        ("which", which, get_args(Which)),
        ("kind of picture", output.suffix.lower().removeprefix("."), KINDS),
    ):
        if given not in choices:
            raise unknown(what, given, choices)
    found = _runs(run, cast(Which, which))
    explained, place = cast(Explained, classes), pick_device(device)
    measured: dict[str, list[Mapping[str, Attention]]] = {}
    shown: dict[str, OpenRun] = {}
    examples: Examples | None = None
    console = Console()
    with DataProgress(Console(stderr=True)) as progress:
        for each, label in zip(found, labels([each.settings for each in found]), strict=True):
            opened = open_run(each.path, dataset=dataset, data_dir=data_dir, on_data=progress.report)
            examples = examples or examples_of(opened, domain or opened.roles.test[-1], images, seed)
            if _can_be_shown(opened, shown.values(), examples.domain.name):
                shown.setdefault(label, opened)
            if table:
                attention = attention_of_run(
                    opened,
                    place,
                    which=cast(Which, which),
                    classes=explained,
                    layer=layer,
                    on_progress=progress.report,
                )
                if attention:
                    measured.setdefault(label, []).append(attention)
    assert examples is not None
    with console.status("drawing ..."):
        figure = draw_grad_cam(shown, examples, which=cast(Which, which), classes=explained, layer=layer, device=place)
    write_figure(output, figure)
    if measured:
        _print(attention_table(measured), explained, markdown)
    elif table:
        print("note: the data has no masks of its objects, so there is no table of attention", file=sys.stderr)
    console.print(f"picture: {output}", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class _Run:
    path: Path
    settings: dict[str, Any]


def _runs(paths: Sequence[Path], which: Which) -> list[_Run]:
    """Those with weights, seed by seed and in the paper's order of methods; all of the same data."""
    folders = [run for run in discover(paths).runs if not run.is_domainbed]
    ready = [folder.path for folder in folders if RunFolder(folder.path).has_weights(which)]
    if not ready:
        raise DomainwiseError(f"no run in {', '.join(map(str, paths))} has a model yet ({which}.safetensors)")
    if missing := len(folders) - len(ready):
        print(f"note: left out because they have no {which}.safetensors yet: {missing} runs", file=sys.stderr)
    runs = [_Run(path, RunFolder(path).read_config()["config"]) for path in ready]
    for other in runs[1:]:
        for what in ("dataset", "dataset_options"):
            one, two = runs[0].settings[what], other.settings[what]
            if one != two:
                raise DomainwiseError(
                    f"{runs[0].path} and {other.path} cannot be shown together: their {what} is {one} and {two}"
                )
    order = {name: number for number, name in enumerate(METHOD_ORDER)}
    return sorted(runs, key=lambda run: (run.settings["trial_seed"], order.get(run.settings["algorithm"], len(order))))


def _can_be_shown(run: OpenRun, others: Iterable[OpenRun], domain: str) -> bool:
    """Whether the run belongs into the picture: the seed of the first, and trained on these images only if that was."""
    first = next(iter(others), run)
    is_alike = (domain in run.roles.train) == (domain in first.roles.train)
    return run.settings["trial_seed"] == first.settings["trial_seed"] and is_alike


def _print(made: AttentionTable, classes: Explained, is_markdown: bool) -> None:
    print(f"Share of Grad-CAM attention on the object, in percent ({classes} class)\n")
    print_table(["method", *made.domains], made.lines(), numeric=len(made.domains), is_markdown=is_markdown)
    for method, (blank, total) in made.blank.items():
        if blank:
            print(f"note: {method}: {blank} of {total} maps have no heat and do not count", file=sys.stderr)
