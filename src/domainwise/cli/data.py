"""`domainwise data`: which datasets there are and where, what is in them, and how to get them ready."""

import inspect
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from domainwise.cli.algorithms import summarize_docstring
from domainwise.cli.console import DataProgress
from domainwise.data import DATASETS, Dataset
from domainwise.data.cache import cache_size, clear_cache
from domainwise.data.datasets import PUBLISHED
from domainwise.data.download import SOURCES, prepare
from domainwise.data.image_files import Check, DomainFiles, Listing, check_files, list_images
from domainwise.data.paths import cache_folder, data_folder
from domainwise.errors import DomainwiseError, unknown
from domainwise.training.config import RunConfig
from domainwise.training.registry import DatasetCache, dataset_options, is_path

app = typer.Typer(help="List, check and prepare datasets.", no_args_is_help=True, rich_markup_mode="rich")

_MOST_SHOWN = 20

DataDir = Annotated[
    Path | None, typer.Option(help="Where the datasets lie; otherwise $DOMAINWISE_DATA, or the user's cache.")
]

LIST_EXAMPLES = """
Examples:

domainwise data list

domainwise data list --data-dir path/to/data
"""


@app.command("list", epilog=LIST_EXAMPLES)
def show_list(data_dir: DataDir = None) -> None:
    """List the datasets and say which are there."""
    console = Console()
    table = Table("dataset", "what it holds", "where", box=None, header_style="bold")
    for name, builder in DATASETS.items():
        about = PUBLISHED[name].about if name in PUBLISHED else summarize_docstring(builder)
        table.add_row(name, about, _whereabouts(name, data_folder(data_dir)))
    console.print(table)
    console.print(
        f"\ndatasets are looked for in {escape(str(data_folder(data_dir)))}; any folder root/domain/class/image, "
        "or a CSV file with columns path, label, domain, is a dataset too",
        highlight=False,
    )


CHECK_EXAMPLES = """
Examples:

domainwise data check pacs --data-dir path/to/data

domainwise data check path/to/images

domainwise data check colored_mnist
"""


@app.command(epilog=CHECK_EXAMPLES)
def check(
    dataset: Annotated[str, typer.Argument(help="From `domainwise data list`, a folder, or a CSV file.")],
    data_dir: DataDir = None,
) -> None:
    """Count a dataset's images by domain and class, open every file, and say what is wrong."""
    console = Console()
    if is_path(dataset) or dataset in PUBLISHED:
        listing = list_images(dataset) if is_path(dataset) else PUBLISHED[dataset].listing(data_dir)
        _print_counts(console, listing)
        with DataProgress(console) as progress:
            found = check_files(listing, progress.report)
        _print_findings(console, listing, found)
        return
    if dataset not in DATASETS:
        raise unknown("dataset", dataset, DATASETS)
    print(inspect.getdoc(DATASETS[dataset]), end="\n\n")
    _print_counts(console, _listing_of(DatasetCache().build(RunConfig(dataset=dataset, data_dir=data_dir))))
    options = dataset_options(dataset).values()
    defaults = ", ".join(f"{option.name}={option.default}" for option in options)
    if defaults:
        console.print(f"\noptions (--dataset-option name=value): {defaults}", highlight=False)


PREPARE_EXAMPLES = """
Examples:

domainwise data prepare pacs

domainwise data prepare office_home --data-dir path/to/data --image-size 96

domainwise data prepare path/to/images
"""


@app.command("prepare", epilog=PREPARE_EXAMPLES)
def get_ready(
    dataset: Annotated[str, typer.Argument(help="From `domainwise data list`, a folder, or a CSV file.")],
    data_dir: DataDir = None,
    image_size: Annotated[int | None, typer.Option(help="Decode images to this side, for training with it.")] = None,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave out images that cannot be read.")] = False,
) -> None:
    """Download a dataset if it is not there, and decode its images, so that training starts at once."""
    console = Console()
    options = {} if image_size is None else {"image_size": image_size}
    if skip_broken:
        options["skip_broken"] = True
    config = RunConfig(dataset=dataset, data_dir=data_dir, dataset_options=options)
    with DataProgress(console) as progress:
        if dataset in SOURCES and dataset in DATASETS:
            folder, source = data_folder(data_dir), SOURCES[dataset]
            if not (folder / source.folder).is_dir() and source.files:
                console.print(f"{dataset} from {source.homepage} (licence: {source.licence})", highlight=False)
            prepare(dataset, folder, on_progress=progress.report)
        built = DatasetCache().build(config, progress.report)
    shape = " x ".join(map(str, built.image_shape))
    images = sum(len(domain) for domain in built.domains)
    console.print(f"[bold]ready[/bold]: {images} images of {shape} in {len(built.domains)} domains", highlight=False)


@app.command("clear-cache", epilog="Example: domainwise data clear-cache")
def clear() -> None:
    """Remove all decoded images; they are decoded again when they are needed."""
    count, size = cache_size()
    clear_cache()
    print(f"removed {count} sets of decoded images, {size / 1e6:.0f} MB, from {cache_folder()}")


def _whereabouts(name: str, folder: Path) -> str:
    if name not in SOURCES:
        return "drawn, nothing to download"
    source = SOURCES[name]
    if (folder / source.folder).is_dir():
        return escape(str(folder / source.folder))
    size = f" ({source.megabytes} MB)" if source.megabytes else ""
    return f"[yellow]not there[/yellow]: domainwise data prepare {name}{size}"


def _listing_of(dataset: Dataset) -> Listing:
    domains = [DomainFiles(each.name, (), tuple(each.labels.tolist()), each.role) for each in dataset.domains]
    return Listing(dataset.name, dataset.classes, tuple(domains))


def _print_counts(console: Console, listing: Listing) -> None:
    """Images by domain and class, the longer list of the two down the page."""
    domains = [f"{domain.name} ({domain.role})" if domain.role else domain.name for domain in listing.domains]
    counts = listing.counts()
    if len(domains) > len(listing.classes):
        head, down, across = "domain", domains, listing.classes
    else:
        head, down, across = "class", list(listing.classes), tuple(domains)
        counts = [list(row) for row in zip(*counts, strict=True)]
    table = Table(head, *map(escape, across), "all", box=None, header_style="bold")
    for name, row in zip(down, counts, strict=True):
        table.add_row(escape(name), *map(str, row), str(sum(row)))
    totals = [sum(column) for column in zip(*counts, strict=True)]
    table.add_row("[bold]all[/bold]", *map(str, totals), str(sum(totals)))
    console.print(table)


def _print_findings(console: Console, listing: Listing, found: Check) -> None:
    for gap in found.gaps:
        console.print(f"[yellow]note[/yellow]: {escape(gap)}", highlight=False, soft_wrap=True)
    for note, count in Counter(found.notes.values()).items():
        first = next(file for file, what in found.notes.items() if what == note)
        console.print(f"{count} images are {note}: {escape(str(first))} ...", highlight=False, soft_wrap=True)
    for file, fault in list(found.faults.items())[:_MOST_SHOWN]:
        console.print(f"[red]broken[/red]: {escape(f'{file} {fault}')}", highlight=False, soft_wrap=True)
    count = sum(len(domain.files) for domain in listing.domains)
    if found.faults:
        more = len(found.faults) - _MOST_SHOWN
        rest = f" ({more} more than shown)" if more > 0 else ""
        raise DomainwiseError(
            f"{len(found.faults)} of {count} images are broken{rest}; replace them, or train with --skip-broken"
        )
    console.print(f"all {count} images can be read", highlight=False)
