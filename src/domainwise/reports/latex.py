"""Tables for a paper: LaTeX with booktabs."""

from domainwise.reports.cells import Cell, Column, Table, shown
from domainwise.reports.report import Report

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
