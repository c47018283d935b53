"""`domainwise report`: tables from the runs of sweeps."""

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from domainwise.cli.console import DataProgress
from domainwise.errors import DomainwiseError, unknown
from domainwise.reports import FORMATS, Report, make_report
from domainwise.reports import html as page
from domainwise.reports.formats import as_terminal
from domainwise.reports.html.page_data import Variants
from domainwise.selection import SELECTIONS
from domainwise.selection.runs import DuplicateRuns, read_runs
from domainwise.storage.files import write_atomic

EXAMPLES = """
Examples:

domainwise report sweeps/pacs

domainwise report sweeps/pacs sweeps/nico --selection training_domain --selection test_domain

domainwise report sweeps/pacs --columns worst,gap --compare paper --versus erm

domainwise report sweeps/pacs --output tables/pacs.tex

domainwise report sweeps/pacs --html pacs.html

domainwise report runs/demo --html demo.html --split-variants

domainwise report path/to/domainbed_sweep --format markdown

domainwise report sweeps/pacs --html pacs.html --pictures
"""

_SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json", ".txt": "terminal"}
_REFERENCES = ("paper",)


def report(
    sweep: Annotated[list[Path], typer.Argument(help="Folders of sweeps or runs, ours or DomainBed's.")],
    selection: Annotated[
        list[str] | None,
        typer.Option(
            help="How models are chosen: training_domain, leave_one_out, test_domain or ood_validation. Repeatable. By "
            "default what the sweep says, or else training_domain."
        ),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="terminal, markdown, latex, csv or json; by default what the ending of --output says, or terminal.",
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write into this file.")] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write a page for the browser, with tables, plots and every run. Tables are then printed only if "
            "--format or --output ask for them."
        ),
    ] = None,
    pictures: Annotated[
        bool,
        typer.Option(
            "--pictures",
            help="Look at the chosen models for the page, too: Grad-CAM, perturbations, accuracy under attack. Needs "
            "their data and, for large networks, minutes.",
        ),
    ] = False,
    dataset: Annotated[str | None, typer.Option(help="The images for --pictures, if the runs used their own.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets lie, for --pictures; as for train.")] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="More columns, of worst, gap and training, with commas between them."),
    ] = None,
    compare: Annotated[str | None, typer.Option(help="`paper`: put its numbers beside these.")] = None,
    versus: Annotated[str | None, typer.Option(help="Compare every method with this one, pair by pair.")] = None,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Count runs that are not done, too.")] = False,
    split_variants: Annotated[
        bool,
        typer.Option(
            "--split-variants", help="Name runs that would fill the same place apart by the settings that differ."
        ),
    ] = False,
) -> None:
    """Tables of accuracy on unseen domains: methods by test domains, and averages over datasets."""
    name = _format(format_, output)
    if compare is not None and compare not in _REFERENCES:
        raise unknown("reference to --compare with", compare, _REFERENCES)
    options: dict[str, Any] = {
        "columns": [word.strip() for word in (columns or "").split(",") if word.strip()],
        "beside_paper": compare == "paper",
        "versus": versus,
    }
    selections = selection or _selections(sweep)
    material = _read(sweep, unfinished=unfinished, split_variants=split_variants, is_for_page=html is not None)
    if html is None and pictures:
        raise DomainwiseError("--pictures are for the page: give --html FILE, too")
    if html is not None:
        # What finds nothing to choose is left out there, so that all may be asked for.
        asked = [*selections, *(() if selection else SELECTIONS)]
        html.parent.mkdir(parents=True, exist_ok=True)
        shown = _pictures(material, asked, dataset, data_dir) if pictures else []
        _write(html, page.as_html(material, selections=asked, pictures=shown, **options))
        if format_ is None and output is None:
            return
    made = make_report(material.runs, selections, **options)
    if name in ("csv", "json"):
        for note in made.notes:
            print(f"note: {note}", file=sys.stderr)
    if output is not None:
        _write(output, FORMATS[name](made))
    else:
        _show(made, name)


def _read(sweep: Sequence[Path], *, unfinished: bool, split_variants: bool, is_for_page: bool) -> page.Material:
    """The runs; what a table does not need of them only where it is asked for."""
    try:
        if not is_for_page and not split_variants:
            return page.Material(read_runs(sweep, unfinished=unfinished))
        with Console(stderr=True).status("reading runs"):
            how: Variants = "split" if split_variants else "refuse"
            return page.read_material(sweep, variants=how, unfinished=unfinished)
    except DuplicateRuns as error:
        advice = "" if split_variants else ", or name them apart by their settings with --split-variants"
        raise DomainwiseError(f"{error}{advice}") from error


def _pictures(
    material: page.Material, selections: Sequence[str], dataset: str | None, data_dir: Path | None
) -> list[page.Picture]:
    """Of the models that the first selection chose; a dataset that cannot be opened is said so and left out."""
    # Imported here because no table needs torch.
    from domainwise.reports.html.gallery import gallery, runs_to_look_at

    name = next((each for each in selections if not SELECTIONS[each](material.runs.frame).is_empty()), None)
    if name is None:
        return []
    made: list[page.Picture] = []
    with DataProgress(Console(stderr=True)) as progress:
        for looked_at in runs_to_look_at(material, name, SELECTIONS[name](material.runs.frame)):
            try:
                made += gallery(
                    looked_at.folders,
                    looked_at.domain,
                    which=looked_at.which,
                    dataset=dataset,
                    data_dir=data_dir,
                    on_progress=progress.report,
                )
            except DomainwiseError as error:
                print(f"note: no pictures of {looked_at.dataset}: {error}", file=sys.stderr)
    return made


def _format(given: str | None, output: Path | None) -> str:
    name = given or _SUFFIXES.get(output.suffix.lower() if output else "", "terminal")
    if name not in FORMATS:
        raise unknown("format", name, FORMATS)
    return name


def _selections(sweeps: Sequence[Path]) -> list[str]:
    """What the sweeps' own files ask for, in their order."""
    wanted: dict[str, None] = {}
    for file in (folder / "sweep.toml" for folder in sweeps):
        if not file.is_file():
            continue
        try:
            given = tomllib.loads(file.read_text(encoding="utf-8")).get("selection", [])
        except (OSError, ValueError) as error:
            raise DomainwiseError(f"{file} cannot be read: {error}") from error
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DomainwiseError(f"selection in {file} must be a list of names, not {given!r}")
        wanted.update(dict.fromkeys(names))
    return list(wanted) or ["training_domain"]


def _write(output: Path, text: str) -> None:
    try:
        write_atomic(output, text.encode())
    except OSError as error:
        raise DomainwiseError(f"{output} cannot be written: {error.strerror}") from error
    print(f"wrote {output}", file=sys.stderr)


def _show(made: Report, name: str) -> None:
    console = Console()
    if name == "terminal" and console.is_terminal:
        as_terminal(made, console)
    else:
        # Into a pipe or file nothing is folded to the width of a window.
        sys.stdout.write(FORMATS[name](made))
