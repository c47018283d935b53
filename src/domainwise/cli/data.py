"""`domainwise data`: list, check and prepare datasets, and measure how far apart their domains are."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from domainwise.cli.console import (
    Cell,
    DataProgress,
    make_console,
    print_json,
    print_line,
    print_table,
    print_text,
    style_text,
)
from domainwise.cli.options import AsJson, DataDir, Device, Quiet, keep_lines, parse_dataset_options
from domainwise.data.catalog import DESCRIPTIONS, DatasetStatus, list_datasets
from domainwise.data.download.sources import SOURCES
from domainwise.data.listing import ANY_IMAGE_SUFFIXES, IMAGE_SUFFIXES, DomainFiles, Listing, describe_suffixes
from domainwise.data.paths import cache_folder, data_folder
from domainwise.errors import DomainwiseError
from domainwise.escaping import escape_unprintable

if TYPE_CHECKING:
    from domainwise.data import Dataset
    from domainwise.data.image_datasets import ImageCheck
    from domainwise.training.domain_shift import DomainShift

app = typer.Typer(help="List, check, measure and prepare datasets.", no_args_is_help=True, rich_markup_mode=None)

_MAX_ERRORS = 20

DatasetArgument = Annotated[
    str,
    typer.Argument(
        help="Name from `domainwise data list`, folder of images, CSV or JSON file, hf:owner/name, or "
        "package.module:function."
    ),
]

ImageSize = Annotated[int | None, typer.Option(help="Side length of the images in pixels.")]
SkipBroken = Annotated[bool, typer.Option("--skip-broken", help="Skip images that could not be read.")]
DatasetOption = Annotated[list[str] | None, typer.Option(help="Dataset option as name=value. Repeatable.")]
TableOnly = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the table.")]

LIST_EXAMPLES = """
Examples:

domainwise data list

domainwise data list --data-dir path/to/data --json
"""


@app.command("list", epilog=keep_lines(LIST_EXAMPLES))
def list_command(
    data_dir: DataDir = None,
    as_json: AsJson = False,
    quiet: TableOnly = False,
) -> None:
    """List the datasets and whether they are available."""
    statuses = list_datasets(data_dir)
    if as_json:
        print_json([asdict(status) for status in statuses])
        return
    rows = [(status.name, status.description, _describe_location(status)) for status in statuses]
    print_table(("dataset", "description", "location"), rows)
    if not quiet:
        print_line(stderr=True)
        print_line(
            f"data folder: {data_folder(data_dir)}; a folder root/domain/class/image, a CSV file with columns path, "
            "label, domain, a JSON file {domain: {class: [path]}} and hf:owner/name are datasets too",
            stderr=True,
        )


def _describe_location(status: DatasetStatus) -> str:
    if status.package:
        return f"package {status.package}"
    if status.folder is None:
        return "synthetic, no download"
    if status.is_available:
        return str(status.folder)
    size = f" ({status.megabytes} MB)" if status.megabytes else ""
    return f"not found: domainwise data prepare {status.name}{size}"


CHECK_EXAMPLES = """
Examples:

domainwise data check pacs --data-dir path/to/data

domainwise data check path/to/images --json

domainwise data check hf:flwrlabs/pacs

domainwise data check colored_mnist
"""


@app.command(epilog=keep_lines(CHECK_EXAMPLES))
def check(
    dataset: DatasetArgument,
    data_dir: DataDir = None,
    dataset_option: DatasetOption = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Count the images per domain and class, and decode every file to find broken ones."""
    from domainwise.data.image_datasets import check_images
    from domainwise.training.registry import list_dataset_files

    options = parse_dataset_options(dataset_option or [], dataset)
    listing = list_dataset_files(dataset, options, data_dir)
    if listing is None:
        _check_generated(dataset, options, data_dir, as_json, quiet)
        return
    if not as_json and not quiet:
        _print_counts(listing)
    with DataProgress(make_console(quiet, stderr=True)) as progress:
        result = check_images(listing, progress.report)
    count = sum(len(domain.files) for domain in listing.domains)
    if as_json:
        findings = {
            "missing_classes": result.missing_classes,
            "converted": {escape_unprintable(str(file)): note for file, note in result.notes.items()},
            "broken": {escape_unprintable(str(file)): error for file, error in result.errors.items()},
            "skipped": {escape_unprintable(suffix): number for suffix, number in result.skipped.items()},
        }
        print_json(_describe_counts(listing) | findings)
    else:
        _print_findings(result, quiet)
    if result.errors:
        hidden = 0 if as_json else len(result.errors) - _MAX_ERRORS
        more = f" (+{hidden} not shown)" if hidden > 0 else ""
        raise DomainwiseError(
            f"{len(result.errors)} of {count} images are broken{more}; replace them, or train with --skip-broken"
        )
    if not as_json and not quiet:
        print_line(f"all {count} images can be read")


def _check_generated(dataset: str, given: dict[str, Any], data_dir: Path | None, as_json: bool, quiet: bool) -> None:
    """Describe a dataset that is not made of image files."""
    import inspect

    from domainwise.training.registry import build_dataset, dataset_options, find_dataset_builder

    listing = _convert_to_listing(build_dataset(dataset, given, seed=0, data_dir=data_dir))
    options = {option.name: option.default for option in dataset_options(dataset).values()}
    if as_json:
        print_json(_describe_counts(listing) | {"options": options})
    elif not quiet:
        if text := inspect.getdoc(find_dataset_builder(dataset)):
            print_text(text, end="\n\n")
        _print_counts(listing)
        if options:
            defaults = ", ".join(f"{name}={default}" for name, default in options.items())
            print_text()
            print_line(f"options (--dataset-option name=value): {defaults}")


def _convert_to_listing(dataset: "Dataset") -> Listing:
    domains = [DomainFiles(each.name, (), tuple(each.labels.tolist()), each.role) for each in dataset.domains]
    return Listing(dataset.name, dataset.classes, tuple(domains))


def _describe_counts(listing: Listing) -> dict[str, object]:
    domains = [
        {"name": domain.name, "role": domain.role, "images": dict(zip(listing.classes, counts, strict=True))}
        for domain, counts in zip(listing.domains, listing.count_images(), strict=True)
    ]
    return {"dataset": listing.name, "domains": domains}


def _print_counts(listing: Listing) -> None:
    """Print the images per domain and class, with the longer of the two as rows."""
    domains = [f"{domain.name} ({domain.role})" if domain.role else domain.name for domain in listing.domains]
    counts = listing.count_images()
    if len(domains) > len(listing.classes):
        corner, row_names, columns = "domain", domains, listing.classes
    else:
        corner, row_names, columns = "class", list(listing.classes), tuple(domains)
        counts = [list(row) for row in zip(*counts, strict=True)]
    rows: list[list[Cell]] = [
        [name, *map(str, row), str(sum(row))] for name, row in zip(row_names, counts, strict=True)
    ]
    totals = [sum(column) for column in zip(*counts, strict=True)]
    rows.append([style_text("all", "bold"), *map(str, totals), str(sum(totals))])
    print_table((corner, *columns, "all"), rows, numeric=len(columns) + 1)


def _print_findings(result: "ImageCheck", quiet: bool) -> None:
    if not quiet:
        for line in result.missing_classes:
            print_line(("note", "yellow"), f": {line}")
        for note, count in Counter(result.notes.values()).items():
            first = next(file for file, file_note in result.notes.items() if file_note == note)
            print_line(f"{count} images are {note}: {first} ...")
        if result.skipped:
            _print_skipped(result.skipped)
    for file, error in list(result.errors.items())[:_MAX_ERRORS]:
        print_line(("broken", "red"), f": {file} {error}")


def _print_skipped(counts: Counter[str]) -> None:
    line = f"skipped {counts.total()} {'file' if counts.total() == 1 else 'files'}: {describe_suffixes(counts)}"
    if counts.keys().isdisjoint(ANY_IMAGE_SUFFIXES):
        print_line(line)
    else:
        print_line(
            ("note", "yellow"), f": {line}; an image must be in a class folder and end in {', '.join(IMAGE_SUFFIXES)}"
        )


SHIFT_EXAMPLES = """
Examples:

domainwise data shift path/to/images --weights path/to/mobilenet_v2-b0353104.pth

domainwise data shift pacs --image-size 64 --network resnet18 --weights IMAGENET1K_V1 --json

domainwise data shift silhouettes
"""


@app.command(epilog=keep_lines(SHIFT_EXAMPLES))
def shift(
    dataset: DatasetArgument,
    network: Annotated[
        str | None,
        typer.Option(
            "--network", "--backbone", help="Network whose features are used (default: as the weights file is named)."
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Its weights: a file or a published name (default: no network, statistics of the pixels)."),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Number of repetitions; their spread is the uncertainty.")] = 3,
    max_images: Annotated[int, typer.Option(help="Maximum number of images per domain.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed for splits, networks and synthetic data.")] = 0,
    data_dir: DataDir = None,
    image_size: ImageSize = None,
    skip_broken: SkipBroken = False,
    dataset_option: DatasetOption = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: TableOnly = False,
) -> None:
    """Measure how far apart the domains are: diversity shift (other styles) and correlation shift (another rule)."""
    from domainwise.training import measure_domain_shift
    from domainwise.training.registry import build_dataset

    errors = make_console(quiet, stderr=True)
    with DataProgress(errors) as progress:
        data = build_dataset(
            dataset,
            _collect_options(dataset, image_size, skip_broken, dataset_option),
            seed=seed,
            data_dir=data_dir,
            on_progress=progress.report,
        )
        report = measure_domain_shift(
            data,
            network=network,
            weights=weights,
            repeats=repeats,
            max_images=max_images,
            seed=seed,
            device=device,
            on_progress=progress.report,
        )
    if as_json:
        print_json(report.as_dict())
        return
    rows = [_format_shift(each) for each in report.left_out]
    if len(data.domains) > 2:
        rows += [_format_shift(each) for each in report.pairs]
    print_table(("domain", "compared with", "meaning", "diversity", "correlation"), rows, numeric=2)
    if quiet:
        return
    print_text()
    print_line((data.name, "bold"), f": {report.meaning}")
    print_line(f"features: {report.features}")
    spread = f"± standard deviation over {repeats} repeats; " if repeats > 1 else ""
    print_line(f"{spread}0 is no shift, 1 the largest")
    for caveat in report.caveats:
        print_line(("note", "yellow"), f": {caveat}")


def _format_shift(shift: "DomainShift") -> tuple[str, ...]:
    numbers = ((shift.diversity, shift.diversity_std), (shift.correlation, shift.correlation_std))
    cells = (f"{mean:.2f}" + ("" if std is None else f" ± {std:.2f}") for mean, std in numbers)
    return (shift.domain, ", ".join(shift.others), shift.meaning, *cells)


def _collect_options(
    dataset: str, image_size: int | None, skip_broken: bool, others: list[str] | None
) -> dict[str, Any]:
    """Return the dataset options that were given."""
    options: dict[str, Any] = {} if image_size is None else {"image_size": image_size}
    options |= {"skip_broken": True} if skip_broken else {}
    return options | parse_dataset_options(others or [], dataset)


PREPARE_EXAMPLES = """
Examples:

domainwise data prepare pacs

domainwise data prepare office_home --data-dir path/to/data --image-size 96

domainwise data prepare path/to/images

domainwise data prepare hf:wltjr1007/DomainNet --dataset-option label_column=category
"""


@app.command(epilog=keep_lines(PREPARE_EXAMPLES))
def prepare(
    dataset: DatasetArgument,
    data_dir: DataDir = None,
    image_size: ImageSize = None,
    skip_broken: SkipBroken = False,
    dataset_option: DatasetOption = None,
    quiet: Quiet = False,
) -> None:
    """Download a dataset if it is not available, and decode its images, so that training starts at once."""
    from domainwise.data.download.dataset import download_dataset
    from domainwise.data.hugging_face import find_hub_dataset, is_hub_dataset
    from domainwise.training.registry import build_dataset

    options = _collect_options(dataset, image_size, skip_broken, dataset_option)
    errors = make_console(quiet, stderr=True)
    with DataProgress(errors) as progress:
        if dataset in SOURCES and dataset in DESCRIPTIONS:
            known = SOURCES[dataset]
            if known.files and not (data_folder(data_dir) / known.folder).is_dir():
                errors.print_line(f"{dataset} from {known.homepage} (licence: {known.licence})")
            download_dataset(dataset, data_dir, on_progress=progress.report)
        elif is_hub_dataset(dataset) and not isinstance(source := find_hub_dataset(dataset), Path):
            page = f"https://huggingface.co/datasets/{source.name}"
            errors.print_line(f"{dataset} from {page} (licence: stated there)")
        data = build_dataset(dataset, options, seed=0, data_dir=data_dir, on_progress=progress.report)
    if not quiet:
        shape = " x ".join(map(str, data.image_shape))
        count = sum(len(domain) for domain in data.domains)
        print_line(("ready", "bold"), f": {count} images of {shape} in {len(data.domains)} domains")


@app.command("clear-cache", epilog=keep_lines("Example:\ndomainwise data clear-cache"))
def clear(quiet: Quiet = False) -> None:
    """Remove all decoded images from the cache; they are decoded again when needed."""
    from domainwise.data.cache import cache_size, clear_cache

    count, size = cache_size()
    clear_cache()
    if not quiet:
        print_line(f"removed {count} cache entries ({size / 1e6:.0f} MB) from {cache_folder()}")
