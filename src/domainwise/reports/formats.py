"""A report as text: for a terminal, Markdown, LaTeX, CSV or JSON."""

import csv
import io
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.escaping import escape_spreadsheet, escape_unprintable
from domainwise.reports.cells import Cell, Column, Report, Table, format_cell
from domainwise.selection.metrics import METRICS
from domainwise.storage.discovery import check_output
from domainwise.storage.files import write_atomic

SCHEMA = 1
_CSV_HEADER = (
    *("dataset", "algorithm", "test_domain", "kind", "mean", "error", "trials", "selection", "reason"),
    *("low", "high", "text", "metric"),
)
_LATEX_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': r"\textquotedbl{}",
        "±": r"$\pm$",
        "—": "---",
        **{character: f"\\{character}" for character in "{}$&#_%"},
    }
)


def format_markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], numeric: int = 0) -> str:
    """Format any table in Markdown; its last `numeric` columns are right-aligned, and bars in cells are escaped."""
    rule = ["---"] * (len(header) - numeric) + ["---:"] * numeric
    cells = [[escape_unprintable(cell).replace("|", "\\|") for cell in line] for line in (header, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (cells[0], rule, *cells[1:]))


def format_markdown(report: Report) -> str:
    """Format every table below a heading, with its footnotes as a list."""
    parts = [_format_markdown_section(table) for table in report.tables]
    if report.notes:
        parts.append("\n".join(f"> {escape_markdown(note)}  " for note in report.notes))
    return "\n\n".join(parts) + "\n"


def format_latex(report: Report) -> str:
    """Format one `table` environment per table, with its footnotes in small print; needs the package booktabs."""
    notes = "".join(f"% {escape_unprintable(note)}\n" for note in report.notes)
    return "% \\usepackage{booktabs}\n\n" + "\n\n".join(map(_format_latex_table, report.tables)) + f"\n{notes}"


def format_csv(report: Report) -> str:
    """Format one row per cell, unrounded; missing numbers are empty, and no name is a formula in a spreadsheet."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_HEADER)
    for table in report.tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                is_comparison = column.kind in ("difference", "collapsed", "trials", "wins", "verdict", "trials_needed")
                kind = f"{column.kind} {table.title.lower()}" if is_comparison else column.kind
                place = (column.dataset, row.algorithm, column.domain, kind)
                number = (cell.mean, cell.error, cell.trials, table.selection, cell.reason)
                values: tuple[Any, ...] = (*place, *number, *(cell.interval or ("", "")), cell.text, table.metric)
                writer.writerow([escape_spreadsheet(each) if isinstance(each, str) else each for each in values])
    return text.getvalue()


def format_json(report: Report) -> str:
    """Format everything, unrounded; a missing mean is null and has a reason."""
    return json.dumps({"schema": SCHEMA, **asdict(report)}, indent=1, allow_nan=False) + "\n"


def format_text(report: Report) -> str:
    """Format as a terminal shows it, without colors and line breaks in cells."""
    lines = []
    for table in report.tables:
        notes = (f"  {escape_unprintable(note)}" for note in table.footnotes)
        lines += [escape_unprintable(format_title(table)), *_align_columns(*tabulate(table)), *notes, ""]
    return "\n".join((*lines, *map(escape_unprintable, report.notes))).rstrip("\n") + "\n"


FORMATS: Mapping[str, Callable[[Report], str]] = {
    "text": format_text,
    "markdown": format_markdown,
    "latex": format_latex,
    "csv": format_csv,
    "json": format_json,
}
# The format of a file by its ending; a page is written by `write_page`.
SUFFIXES: Mapping[str, str] = {
    ".txt": "text",
    ".md": "markdown",
    ".tex": "latex",
    ".csv": "csv",
    ".json": "json",
    ".html": "html",
}


def write_report(output: str | Path, report: Report, format: str | None = None) -> None:
    """Write a report to a file.

    Args:
        output: the file; missing parent folders are created.
        format: a name of `FORMATS` (default: by the ending of the file, or `text`).
    """
    name = format or SUFFIXES.get(Path(output).suffix.lower(), "text")
    if name not in FORMATS:
        raise unknown_choice("format", name, FORMATS)
    write_text(output, FORMATS[name](report))


def write_text(output: str | Path, text: str) -> None:
    """Write a whole file, or raise an error that names it. A file of a run is an error."""
    check_output(Path(output))
    try:
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(Path(output), text.encode())
    except OSError as error:
        raise DomainwiseError(f"{output} could not be written: {error.strerror}") from error


def format_title(table: Table) -> str:
    metric = "" if table.metric == "accuracy" else f", {METRICS[table.metric].title}"
    return f"{table.title}{metric}, selected by {table.selection}"


def tabulate(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table as text; the first column is the methods."""
    header = ["method", *(column.name for column in table.columns)]
    return header, [[row.algorithm, *map(format_cell, row.cells, table.columns)] for row in table.rows]


def _align_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table; all columns but the first are right-aligned."""
    lines = [[escape_unprintable(cell) for cell in line] for line in (header, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    padding = [[" " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return [
        " " + "  ".join((line[0] + pad[0], *map(operator.add, pad[1:], line[1:]))).rstrip()
        for line, pad in zip(lines, padding, strict=True)
    ]


def _format_markdown_section(table: Table) -> str:
    header = ["method", *(escape_markdown(column.name) for column in table.columns)]
    rows = [
        [escape_markdown(row.algorithm), *map(_format_markdown_cell, row.cells, table.columns)] for row in table.rows
    ]
    notes = "\n".join(f"- {escape_markdown(note)}" for note in table.footnotes)
    body = format_markdown_table(header, rows, numeric=len(table.columns))
    return "\n\n".join((f"### {escape_markdown(format_title(table))}", body, notes))


def _format_markdown_cell(cell: Cell, column: Column) -> str:
    return f"**{format_cell(cell, column)}**" if cell.is_best else format_cell(cell, column)


def escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*<\[]|&(?=#?\w+;))", r"\\\1", escape_unprintable(text))


def _format_latex_table(table: Table) -> str:
    header = ("method", *(escape_latex(column.name) for column in table.columns))
    # At the start of a row, [ or * would be an argument of the end of the row before.
    methods = [("{}" if row.algorithm[:1] in ("[", "*") else "") + escape_latex(row.algorithm) for row in table.rows]
    rows = [
        (method, *map(_format_latex_cell, row.cells, table.columns))
        for method, row in zip(methods, table.rows, strict=True)
    ]
    lines = [
        r"\begin{table}",
        r"  \centering",
        f"  \\caption{{{escape_latex(format_title(table))}}}",
        f"  \\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"    \toprule",
        f"    {' & '.join(header)} \\\\",
        r"    \midrule",
        *(f"    {' & '.join(row)} \\\\" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        *(f"  \\par\\footnotesize {escape_latex(note)}" for note in table.footnotes),
        r"\end{table}",
    ]
    return "\n".join(lines)


def _format_latex_cell(cell: Cell, column: Column) -> str:
    text = escape_latex(format_cell(cell, column))
    text = text if cell.mean is None else text.replace("-", "$-$")
    return f"\\textbf{{{text}}}" if cell.is_best else text


def escape_latex(text: str) -> str:
    return escape_unprintable(text).translate(_LATEX_ESCAPES)
