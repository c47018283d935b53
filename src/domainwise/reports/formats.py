"""Tables as they stand in README and docs."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from domainwise.reports.cells import Cell, Column, Table, shown
from domainwise.reports.report import Report


def as_markdown(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """A table whose last `numbers` columns are set to the right. A bar inside a cell does not end it."""
    rule = ["---"] * (len(head) - numbers) + ["---:"] * numbers
    lines = [head, rule, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_ESCAPES = str.maketrans(
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


def as_latex(report: Report) -> str:
    """One `table` a table, its footnotes in small print under it; needs the package booktabs."""
    notes = "".join(f"% {' '.join(note.split())}\n" for note in report.notes)
    return "% \\usepackage{booktabs}\n\n" + "\n\n".join(map(_table, report.tables)) + f"\n{notes}"


def escaped(text: str) -> str:
    """Text as LaTeX prints it."""
    return " ".join(text.split()).translate(_ESCAPES)


def _table(table: Table) -> str:
    head = " & ".join(("method", *(escaped(column.name) for column in table.columns)))
    rows = [" & ".join((escaped(row.algorithm), *map(_cell, row.cells, table.columns))) + r" \\" for row in table.rows]
    lines = [
        r"\begin{table}",
        r"  \centering",
        f"  \\caption{{{escaped(table.title)}, chosen by {escaped(table.selection)}}}",
        f"  \\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"    \toprule",
        f"    {head} \\\\",
        r"    \midrule",
        *(f"    {row}" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        *(f"  \\par\\footnotesize {escaped(note)}" for note in table.footnotes),
        r"\end{table}",
    ]
    return "\n".join(lines)


def _cell(cell: Cell, column: Column) -> str:
    mean, error = shown(cell, column)
    mean = mean.translate(_ESCAPES).replace("-", "$-$") if cell.mean is not None else "---"
    both = f"{mean} $\\pm$ {error}" if error else mean
    return f"\\textbf{{{both}}}" if cell.is_best else both


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
