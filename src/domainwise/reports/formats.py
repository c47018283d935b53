"""A report as text: for a terminal, Markdown, LaTeX, CSV or JSON."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.reports.cells import Cell, Column, Report, Table, format_cell
from domainwise.storage.files import write_atomic

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

SCHEMA = 1
_CSV_HEADER = (
    *("dataset", "algorithm", "test_domain", "kind", "mean", "error", "trials", "selection", "reason"),
    *("low", "high", "text"),
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
    lines = [header, rule, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_markdown(report: Report) -> str:
    """Format every table below a heading, with its footnotes as a list."""
    parts = [_format_markdown_section(table) for table in report.tables]
    if report.notes:
        parts.append("\n".join(f"> {escape_markdown(note)}  " for note in report.notes))
    return "\n\n".join(parts) + "\n"


def format_latex(report: Report) -> str:
    """Format one `table` environment per table, with its footnotes in small print; needs the package booktabs."""
    notes = "".join(f"% {' '.join(note.split())}\n" for note in report.notes)
    return "% \\usepackage{booktabs}\n\n" + "\n\n".join(map(_format_latex_table, report.tables)) + f"\n{notes}"


def format_csv(report: Report) -> str:
    """Format one row per cell, unrounded; missing numbers are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_HEADER)
    for table in report.tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                is_comparison = column.kind in ("difference", "trials", "wins", "verdict", "trials_needed")
                kind = f"{column.kind} {table.title.lower()}" if is_comparison else column.kind
                place = (column.dataset, row.algorithm, column.domain, kind)
                number = (cell.mean, cell.error, cell.trials, table.selection, cell.reason)
                writer.writerow((*place, *number, *(cell.interval or ("", "")), cell.text))
    return text.getvalue()


def format_json(report: Report) -> str:
    """Format everything, unrounded; a missing mean is null and has a reason."""
    return json.dumps({"schema": SCHEMA, **asdict(report)}, indent=1, allow_nan=False) + "\n"


def format_text(report: Report) -> str:
    """Format as a terminal shows it, without colors and line breaks in cells."""
    from rich.console import Console

    file = io.StringIO()
    print_report(report, Console(file=file, width=500, color_system=None))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def print_report(report: Report, console: "Console") -> None:
    """Print to a terminal, with the best of each column in bold."""
    from rich.text import Text

    for table in report.tables:
        console.print(Text(_format_title(table), style="bold"))
        console.print(_build_rich_table(table))
        for note in table.footnotes:
            console.print(Text(f"  {note}", style="dim"))
        console.print()
    for note in report.notes:
        console.print(Text(note))


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
    """Write a whole file, or raise an error that names it."""
    try:
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(Path(output), text.encode())
    except OSError as error:
        raise DomainwiseError(f"{output} could not be written: {error.strerror}") from error


def _format_title(table: Table) -> str:
    return f"{table.title}, selected by {table.selection}"


def _format_markdown_section(table: Table) -> str:
    header = ["method", *(escape_markdown(column.name).replace("|", "\\|") for column in table.columns)]
    rows = [
        [escape_markdown(row.algorithm), *map(_format_markdown_cell, row.cells, table.columns)] for row in table.rows
    ]
    notes = "\n".join(f"- {escape_markdown(note)}" for note in table.footnotes)
    body = format_markdown_table(header, rows, numeric=len(table.columns))
    return "\n\n".join((f"### {escape_markdown(_format_title(table))}", body, notes))


def _format_markdown_cell(cell: Cell, column: Column) -> str:
    return f"**{format_cell(cell, column)}**" if cell.is_best else format_cell(cell, column)


def escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*<\[])", r"\\\1", " ".join(text.split()))


def _format_latex_table(table: Table) -> str:
    header = ("method", *(escape_latex(column.name) for column in table.columns))
    rows = [(escape_latex(row.algorithm), *map(_format_latex_cell, row.cells, table.columns)) for row in table.rows]
    lines = [
        r"\begin{table}",
        r"  \centering",
        f"  \\caption{{{escape_latex(_format_title(table))}}}",
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
    text = format_cell(cell, column).translate(_LATEX_ESCAPES)
    text = text if cell.mean is None else text.replace("-", "$-$")
    return f"\\textbf{{{text}}}" if cell.is_best else text


def escape_latex(text: str) -> str:
    return " ".join(text.split()).translate(_LATEX_ESCAPES)


def _build_rich_table(table: Table) -> "RichTable":
    from rich.table import Table as RichTable
    from rich.text import Text

    rich_table = RichTable(box=None)
    rich_table.add_column("method", header_style="bold")
    for column in table.columns:
        rich_table.add_column(Text(column.name), justify="right", header_style="bold")
    for row in table.rows:
        cells = [
            Text(format_cell(cell, column), style="bold" if cell.is_best else "")
            for cell, column in zip(row.cells, table.columns, strict=True)
        ]
        rich_table.add_row(Text(row.algorithm), *cells)
    return rich_table
