"""The numbers that the paper prints, to put beside one's own."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from domainwise.reports.cells import Cell, Column, Row, Table

OWN_RUNS = "the paper"


@dataclass(frozen=True)
class Value:
    """One accuracy of the paper, in percent.

    Args:
        table: the number of the table that has it.
        column: that table's column, in our words.
        dataset: as tables here call it; empty for a mean over datasets.
        domain: the test domain; empty for a mean over all of them.
        selection: how the paper chose the model; empty where it does not say.
        source: whose measurement it is.
        setting: what was set apart from the method's search, such as `eta = 0.1`.
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
    """A table of the paper: its caption in our words, what is wrong with it, and its values row by row.

    Args:
        mean_of: for each column that is an average, the columns that it averages.
    """

    number: int
    caption: str
    note: str
    columns: tuple[str, ...]
    mean_of: Mapping[str, tuple[str, ...]]
    values: tuple[Value, ...]


@cache
def published() -> Mapping[int, PublishedTable]:
    """Every table of the paper that holds accuracies, by its number."""
    content = tomllib.loads(files(__package__).joinpath("published.toml").read_text(encoding="utf-8"))
    return {table["number"]: _table(table) for table in content["table"]}


def _table(raw: Mapping[str, Any]) -> PublishedTable:
    columns = raw["columns"]
    return PublishedTable(
        number=raw["number"],
        caption=raw["caption"],
        note=raw.get("note", ""),
        columns=tuple(column["name"] for column in columns),
        mean_of={column["name"]: tuple(column["mean_of"]) for column in columns if "mean_of" in column},
        values=tuple(
            _value(raw["number"], column, row, value)
            for row in raw["rows"]
            for column, value in zip(columns, row["values"], strict=True)
            if value
        ),
    )


def _value(number: int, column: Mapping[str, Any], row: Mapping[str, Any], value: list[float]) -> Value:
    return Value(
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


# Where methods are compared after a search: the main table, GUT on NICO, and training on a single domain.
_TABLES = (2, 9, 10)
_SETTINGS = (
    "The paper's settings are not these: a ResNet-18, 8000 steps, 8 draws of the hyperparameters (6 on nico and "
    "colored_mnist), 3 seeds. Compare differences between methods rather than levels."
)
_BORROWED = "The paper took these from OoD-Bench, with 20 draws and 5001 steps: {}."


def with_paper(table: Table, domains: Mapping[str, tuple[str, ...]]) -> Table:
    """The table with a column of the paper's after each that it has numbers for.

    Args:
        domains: every dataset's test domains here; the paper's number for one domain is no average over several.
    """
    columns: list[Column] = []
    cells: list[list[Cell]] = [[] for _ in table.rows]
    used: list[Value] = []
    for index, column in enumerate(table.columns):
        columns.append(column)
        for row, into in zip(table.rows, cells, strict=True):
            into.append(row.cells[index])
        theirs = _values(column, domains)
        found = [theirs[row.algorithm] for row in table.rows if row.algorithm in theirs]
        if found:
            used += found
            columns.append(replace(column, name=_name(column, found), kind="paper"))
            for row, into in zip(table.rows, cells, strict=True):
                into.append(_cell(theirs.get(row.algorithm)))
    if not used:
        return replace(table, footnotes=(*table.footnotes, "The paper has no numbers for this."))
    rows = tuple(Row(row.algorithm, tuple(into)) for row, into in zip(table.rows, cells, strict=True))
    return replace(table, columns=tuple(columns), rows=rows, footnotes=(*table.footnotes, *_notes(table, used)))


def _values(column: Column, domains: Mapping[str, tuple[str, ...]]) -> dict[str, Value]:
    """A method's number in the first table that has it."""
    if column.kind not in ("domain", "average", "average_over_trials"):
        return {}
    wanted = {column.domain}
    if column.kind == "average_over_trials" and len(domains[column.dataset]) == 1:
        wanted.add(domains[column.dataset][0])
    values: dict[str, Value] = {}
    for number in _TABLES:
        for value in published()[number].values:
            if value.dataset == column.dataset and value.domain in wanted:
                values.setdefault(value.algorithm, value)
    return values


def _name(column: Column, found: list[Value]) -> str:
    tables = sorted({value.table for value in found})
    return f"paper's {column.name} (Table{'s' if len(tables) > 1 else ''} {', '.join(map(str, tables))})"


def _cell(value: Value | None) -> Cell:
    return Cell(None, reason="not in the paper") if value is None else Cell(value.mean, value.error)


def _notes(table: Table, used: list[Value]) -> list[str]:
    notes = [_SETTINGS]
    if borrowed := dict.fromkeys(value.algorithm for value in used if value.source != OWN_RUNS):
        notes.append(_BORROWED.format(", ".join(borrowed)))
    for dataset, selection in dict.fromkeys((value.dataset, value.selection) for value in used):
        if selection != table.selection:
            notes.append(f"On {dataset} the paper chose by {selection}, not {table.selection}.")
    return notes
