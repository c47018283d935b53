"""The numbers that the paper prints, to put beside one's own."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

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
