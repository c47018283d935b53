"""A report as text for a page, a paper, a program or a terminal."""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from domainwise.markdown import as_markdown
from domainwise.reports.cells import Cell, Column, Table, shown
from domainwise.reports.latex import as_latex
from domainwise.reports.report import Report

SCHEMA = 1
_CSV_HEAD = ("dataset", "algorithm", "test_domain", "kind", "mean", "error", "trials", "selection", "reason")


def as_markdown_page(report: Report) -> str:
    """Every table under a heading, with its footnotes as a list."""
    parts = [_markdown(table) for table in report.tables]
    if report.notes:
        parts.append("\n".join(f"> {_plain(note)}  " for note in report.notes))
    return "\n\n".join(parts) + "\n"


def as_csv(report: Report) -> str:
    """A row a cell, unrounded; empty where there is no number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_HEAD)
    for table in report.tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                place = (column.dataset, row.algorithm, column.domain, _kind(table, column))
                writer.writerow((*place, cell.mean, cell.error, cell.trials, table.selection, cell.reason))
    return text.getvalue()


def as_json(report: Report) -> str:
    """Everything, unrounded; a missing mean is null and has a reason."""
    return json.dumps({"schema": SCHEMA, **asdict(report)}, indent=1, allow_nan=False) + "\n"


def as_terminal(report: Report, console: Console) -> None:
    """Print to a terminal, the best in bold."""
    for table in report.tables:
        console.print(Text(f"{table.title}, chosen by {table.selection}", style="bold"))
        console.print(_rich(table))
        for note in table.footnotes:
            console.print(Text(f"  {note}", style="dim"))
        console.print()
    for note in report.notes:
        console.print(Text(note))


def as_plain_text(report: Report) -> str:
    """What a terminal shows, for a file: no colours, no folding."""
    file = io.StringIO()
    as_terminal(report, Console(file=file, width=500, color_system=None))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


FORMATS: Mapping[str, Callable[[Report], str]] = {
    "terminal": as_plain_text,
    "markdown": as_markdown_page,
    "latex": as_latex,
    "csv": as_csv,
    "json": as_json,
}


def _markdown(table: Table) -> str:
    head = ["method", *(_plain(column.name).replace("|", "\\|") for column in table.columns)]
    rows = [
        [
            _plain(row.algorithm),
            *(_words(cell, column, "**") for cell, column in zip(row.cells, table.columns, strict=True)),
        ]
        for row in table.rows
    ]
    title = f"### {_plain(table.title)}, chosen by {table.selection}"
    notes = "\n".join(f"- {_plain(note)}" for note in table.footnotes)
    return "\n\n".join((title, as_markdown(head, rows, numbers=len(table.columns)), notes))


def _rich(table: Table) -> RichTable:
    shown_table = RichTable(box=None)
    shown_table.add_column("method", header_style="bold")
    for column in table.columns:
        shown_table.add_column(Text(column.name), justify="right", header_style="bold")
    for row in table.rows:
        cells = [
            Text(_words(cell, column), style="bold" if cell.is_best else "")
            for cell, column in zip(row.cells, table.columns, strict=True)
        ]
        shown_table.add_row(Text(row.algorithm), *cells)
    return shown_table


def _words(cell: Cell, column: Column, best: str = "") -> str:
    mean, error = shown(cell, column)
    text = f"{mean} ± {error}" if error else mean
    return f"{best}{text}{best}" if cell.is_best else text


def _kind(table: Table, column: Column) -> str:
    is_comparison = column.kind in ("difference", "pairs", "ahead", "p")
    return f"{column.kind} {table.title.lower()}" if is_comparison else column.kind


def _plain(text: str) -> str:
    """Text in which markdown finds nothing to format."""
    return re.sub(r"([\\`*<\[])", r"\\\1", " ".join(text.split()))
