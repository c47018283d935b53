"""The accuracies that the paper prints, to compare with one's own."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from domainwise.reports.cells import Cell, Column, Row, Table

OWN_RUNS = "the paper"


@dataclass(frozen=True)
class PublishedValue:
    """One accuracy in the paper, in percent.

    Args:
        table: number of the table.
        column: the table's column, by our names.
        dataset: the dataset's name in our tables; empty for a mean over datasets.
        domain: the test domain; empty for a mean over all.
        selection: how the paper selected the model; empty if it does not say.
        source: who measured it.
        setting: a hyperparameter that was fixed, such as `eta = 0.1`.
    """

    table: int
    column: str
    algorithm: str
    dataset: str
    domain: str
    selection: str
    source: str
    setting: str
    mean: float
    error: float | None


@dataclass(frozen=True)
class PublishedTable:
    """A table of the paper: a caption in our words, a note on its errors, and its values row by row.

    Args:
        mean_of: by the name of a column that is an average, the columns it averages.
    """

    number: int
    caption: str
    note: str
    columns: tuple[str, ...]
    mean_of: Mapping[str, tuple[str, ...]]
    values: tuple[PublishedValue, ...]


@cache
def load_published_tables() -> Mapping[int, PublishedTable]:
    """Return every table of the paper with accuracies, by number."""
    content = tomllib.loads(files(__package__).joinpath("published.toml").read_text(encoding="utf-8"))
    return {table["number"]: _parse_table(table) for table in content["table"]}


def _parse_table(raw: Mapping[str, Any]) -> PublishedTable:
    columns = raw["columns"]
    return PublishedTable(
        number=raw["number"],
        caption=raw["caption"],
        note=raw.get("note", ""),
        columns=tuple(column["name"] for column in columns),
        mean_of={column["name"]: tuple(column["mean_of"]) for column in columns if "mean_of" in column},
        values=tuple(
            _parse_value(raw["number"], column, row, value)
            for row in raw["rows"]
            for column, value in zip(columns, row["values"], strict=True)
            if value
        ),
    )


def _parse_value(number: int, column: Mapping[str, Any], row: Mapping[str, Any], value: list[float]) -> PublishedValue:
    return PublishedValue(
        table=number,
        column=column["name"],
        algorithm=row["method"],
        dataset=row.get("dataset", column.get("dataset", "")),
        domain=column.get("domain", ""),
        selection=column.get("selection", ""),
        source=row.get("source", OWN_RUNS),
        setting=row.get("setting", ""),
        mean=value[0],
        error=value[1] if len(value) == 2 else None,
    )


# The tables that compare methods after a search: the main one, GUT on NICO, and training on a single domain.
_COMPARED_TABLES = (2, 9, 10)
_SETTINGS = (
    "The paper's settings differ: ResNet-18, 8000 steps, 8 hyperparameter draws (6 on nico and colored_mnist), "
    "3 seeds. Compare differences between methods rather than absolute accuracies. Its ± is as published (DomainBed "
    "has ddof 0)."
)
_BORROWED = "The paper's numbers for {} are from OoD-Bench (20 draws, 5001 steps)."


def add_paper_columns(table: Table, domains: Mapping[str, tuple[str, ...]]) -> Table:
    """Return the table with a column of the paper's numbers after each column that it has numbers for.

    Args:
        domains: the test domains of every dataset in the report; the paper's number for one domain is not compared
            with an average over several.
    """
    columns: list[Column] = []
    cells: list[list[Cell]] = [[] for _ in table.rows]
    used: list[PublishedValue] = []
    for index, column in enumerate(table.columns):
        columns.append(column)
        for row, row_cells in zip(table.rows, cells, strict=True):
            row_cells.append(row.cells[index])
        published = _find_values(column, domains)
        values = [published[row.algorithm] for row in table.rows if row.algorithm in published]
        if values:
            used += values
            columns.append(replace(column, name=_column_name(column, values), kind="paper"))
            for row, row_cells in zip(table.rows, cells, strict=True):
                row_cells.append(_published_cell(published.get(row.algorithm)))
    if not used:
        return replace(table, footnotes=(*table.footnotes, "The paper has no numbers for this table."))
    rows = tuple(Row(row.algorithm, tuple(row_cells)) for row, row_cells in zip(table.rows, cells, strict=True))
    return replace(table, columns=tuple(columns), rows=rows, footnotes=(*table.footnotes, *_footnotes(table, used)))


def _find_values(column: Column, domains: Mapping[str, tuple[str, ...]]) -> dict[str, PublishedValue]:
    """Return each method's number in the first table that has one."""
    if column.kind not in ("domain", "average", "average_over_trials"):
        return {}
    wanted = {column.domain}
    if column.kind == "average_over_trials" and len(domains[column.dataset]) == 1:
        wanted.add(domains[column.dataset][0])
    values: dict[str, PublishedValue] = {}
    for number in _COMPARED_TABLES:
        for value in load_published_tables()[number].values:
            if value.dataset == column.dataset and value.domain in wanted:
                values.setdefault(value.algorithm, value)
    return values


def _column_name(column: Column, values: list[PublishedValue]) -> str:
    tables = sorted({value.table for value in values})
    return f"paper's {column.name} (Table{'s' if len(tables) > 1 else ''} {', '.join(map(str, tables))})"


def _published_cell(value: PublishedValue | None) -> Cell:
    return Cell(None, reason="not in the paper") if value is None else Cell(value.mean, value.error)


def _footnotes(table: Table, used: list[PublishedValue]) -> list[str]:
    notes = [_SETTINGS]
    if borrowed := dict.fromkeys(value.algorithm for value in used if value.source != OWN_RUNS):
        notes.append(_BORROWED.format(", ".join(borrowed)))
    for dataset, selection in dict.fromkeys((value.dataset, value.selection) for value in used):
        if selection != table.selection:
            notes.append(f"On {dataset} the paper selected by {selection}, not {table.selection}.")
    return notes
