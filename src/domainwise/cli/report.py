"""`domainwise report`: tables or a page about the runs of sweeps."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from domainwise.cli.console import (
    DataProgress,
    make_console,
    print_line,
    print_table,
    print_text,
    show_status,
    style_text,
)
from domainwise.cli.options import DataDir, OwnAlgorithm, OwnNetwork
from domainwise.errors import DomainwiseError, unknown_choice

if TYPE_CHECKING:
    from domainwise.data.paths import OnProgress
    from domainwise.reports import Report

EXAMPLES = """
Examples:

domainwise report sweeps/pacs

domainwise report sweeps/pacs sweeps/nico --selection training_domain --selection test_domain

domainwise report sweeps/pacs --column worst --column gap --paper --compare-to erm

domainwise report sweeps/pacs --compare-to erm --margin 0.5

domainwise report sweeps/pacs --metric macro_f1 --column worst

domainwise report sweeps/pacs -o tables/pacs.tex

domainwise report sweeps/pacs -o pacs.html

domainwise report sweeps/pacs -o pacs.html --pictures

domainwise report runs/demo -o demo.html --split-variants

domainwise report path/to/domainbed_sweep --format markdown
"""


def report(
    sweep: Annotated[list[Path], typer.Argument(help="Folders of sweeps or runs, ours or DomainBed's.")],
    selection: Annotated[
        list[str] | None,
        typer.Option(
            help="Model selection: training_domain, one_standard_error, attacked_holdout, leave_one_out, test_domain "
            "or ood_validation. Repeatable (default: that of sweep.toml, or training_domain).",
            autocompletion=lambda: _complete("selection"),
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            "--columns",
            help="Extra column: worst, gap or training. Repeatable.",
            autocompletion=lambda: _complete("column"),
        ),
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            help="What to select and compare models by: accuracy, macro_f1, balanced_accuracy, worst_class or ece. All "
            "but accuracy need runs with --metrics.",
            autocompletion=lambda: _complete("metric"),
        ),
    ] = "accuracy",
    paper: Annotated[bool, typer.Option("--paper", help="Show the paper's numbers next to ours.")] = False,
    compare_to: Annotated[str | None, typer.Option(help="Compare every method with this one, trial by trial.")] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            help="With --compare-to: largest difference without practical importance, in points (default: 1)."
        ),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="text, markdown, latex, csv, json or html (default: by the ending of --output, or text).",
            autocompletion=lambda: _complete("format"),
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write (default: print to stdout).")
    ] = None,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Include runs that are not done.")] = False,
    split_variants: Annotated[
        bool,
        typer.Option(
            "--split-variants", help="Tell runs that would fill the same cell apart by the settings that differ."
        ),
    ] = False,
    pictures: Annotated[
        bool,
        typer.Option(
            "--pictures",
            help="Add pictures of the selected models to the page: Grad-CAM, perturbations, accuracy under attack. "
            "Needs the data, and minutes for large networks.",
        ),
    ] = False,
    dataset: Annotated[str | None, typer.Option(help="Dataset for --pictures, if it is not a built-in one.")] = None,
    data_dir: DataDir = None,
    algorithm: OwnAlgorithm = None,
    network: OwnNetwork = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no notes.")] = False,
) -> None:
    """Report accuracy on unseen domains: tables of methods by test domains and averages over datasets, or a page."""
    from domainwise import reports
    from domainwise.reports.formats import SUFFIXES

    name = format_ or SUFFIXES.get(output.suffix.lower() if output else "", "text")
    if name != "html" and name not in reports.FORMATS:
        raise unknown_choice("format", name, [*reports.FORMATS, "html"])
    if name != "html" and pictures:
        raise DomainwiseError("--pictures are part of a page; add --output FILE.html")
    needed = {"--dataset": dataset, "--data-dir": data_dir, "--algorithm": algorithm, "--network": network}
    for option in (option for option, value in needed.items() if value is not None and not pictures):
        raise DomainwiseError(f"{option} has no effect without --pictures")
    if margin is not None and compare_to is None:
        raise DomainwiseError("--margin is for verdicts; add --compare-to METHOD")
    options: dict[str, Any] = {
        "selections": selection or (),
        "columns": column or (),
        "metric": metric,
        "paper": paper,
        "compare_to": compare_to,
        **({} if margin is None else {"margin": margin}),
        "unfinished": unfinished,
        "split_variants": split_variants,
    }
    if name == "html":
        if output is None:
            raise DomainwiseError("a page is written to a file; add --output FILE.html")
        with _show_progress(quiet) as on_progress:
            reports.write_page(
                output,
                sweep,
                **options,
                model_pictures=pictures,
                dataset=dataset,
                data_dir=data_dir,
                algorithm=algorithm,
                network=network,
                on_progress=on_progress,
            )
    else:
        result = reports.report(sweep, **options)
        # Programs read these two, so notes must not be part of them.
        if name in ("csv", "json") and not quiet:
            for note in result.notes:
                print_line(f"note: {note}", stderr=True)
        if output is None:
            _print_report(result, name)
        else:
            reports.write_report(output, result, name)
    if output is not None and not quiet:
        print_line(f"wrote {output}", stderr=True)


def _complete(option: Literal["selection", "column", "metric", "format"]) -> list[str]:
    from domainwise.reports.formats import SUFFIXES
    from domainwise.reports.tables import EXTRA_COLUMNS
    from domainwise.selection import METRICS, SELECTIONS

    choices: dict[str, Iterable[str]] = {
        "selection": SELECTIONS,
        "column": EXTRA_COLUMNS,
        "metric": METRICS,
        "format": SUFFIXES.values(),
    }
    return list(choices[option])


@contextmanager
def _show_progress(quiet: bool) -> "Iterator[OnProgress]":
    """Show that runs are read, then a progress bar per task, all on stderr."""
    console = make_console(quiet, stderr=True)
    with DataProgress(console) as progress, ExitStack() as status:
        status.enter_context(show_status(console, "reading runs"))

        def on_progress(task: str, done: int, total: int) -> None:
            status.close()  # rich shows one live display at a time
            progress.report(task, done, total)

        yield on_progress


def _print_report(result: "Report", name: str) -> None:
    from domainwise.reports.formats import FORMATS

    if name == "text" and make_console().is_terminal:
        print_report(result)
    else:
        # In a pipe or file, nothing is folded to the width of a window.
        print_text(FORMATS[name](result), end="")


def print_report(report: "Report") -> None:
    """Print the tables to a terminal, with the best of each column in bold."""
    from domainwise.reports.formats import format_title, tabulate

    console = make_console()
    for table in report.tables:
        console.print_line((format_title(table), "bold"))
        header, rows = tabulate(table)
        styles = [["", *("bold" if cell.is_best else "" for cell in row.cells)] for row in table.rows]
        cells = [list(map(style_text, row, style)) for row, style in zip(rows, styles, strict=True)]
        print_table(header, cells, len(table.columns))
        for note in table.footnotes:
            console.print(style_text(f"  {note}", "dim"))
        print_text()
    for note in report.notes:
        console.print(style_text(note))
