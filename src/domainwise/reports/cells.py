"""A report as data, before any format: tables of cells, and which methods and test domains each has."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from domainwise.reports.methods import Variant, sort_methods
from domainwise.selection.runs import Runs
from domainwise.selection.statistics import estimate_mean
from domainwise.storage.sweep_folder import PlannedRun

MISSING = "—"

Kind = Literal[
    "domain",
    "average",
    "worst",
    "gap",
    "training",
    "average_over_trials",
    "average_of_datasets",
    "paper",
    "difference",
    "collapsed",
    "trials",
    "wins",
    "verdict",
    "trials_needed",
]


@dataclass(frozen=True)
class Cell:
    """A number, unrounded, metrics in percent; or a text such as a verdict; or the reason why there is neither.

    Args:
        error: standard error over trials; None for a single trial, and for cells without trials.
        reason: why the number is missing, or is based on fewer trials than others.
        interval: confidence interval, shown instead of the error.
        is_partial: it is based on fewer test domains than others, and cannot be compared with them.
    """

    mean: float | None
    error: float | None = None
    trials: int = 0
    reason: str = ""
    is_partial: bool = False
    is_best: bool = False
    interval: tuple[float, float] | None = None
    text: str = ""


@dataclass(frozen=True)
class Column:
    """What a column contains. `dataset` and `domain` are empty for a column about several."""

    name: str
    kind: Kind
    dataset: str = ""
    domain: str = ""
    is_lower_better: bool = False

    @property
    def digits(self) -> int:
        return {"trials": 0, "wins": 0}.get(self.kind, 1)

    @property
    def is_signed(self) -> bool:
        return self.kind in ("gap", "difference")

    @property
    def is_ranked(self) -> bool:
        """Whether the highest number is the best, or the lowest if that is better."""
        return self.kind in ("domain", "average", "worst", "average_over_trials", "average_of_datasets")


ACCURACY = Column("accuracy", "average")


@dataclass(frozen=True)
class Row:
    algorithm: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    title: str
    selection: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    footnotes: tuple[str, ...]
    metric: str = "accuracy"


@dataclass(frozen=True)
class Report:
    tables: tuple[Table, ...]
    notes: tuple[str, ...]


def estimate_cell(values: Sequence[float], reason: str = "") -> Cell:
    """Return the cell of accuracies or another metric in 0..1, one per trial."""
    if not values:
        return Cell(None, reason=reason)
    estimate = estimate_mean(100 * value for value in values)
    return Cell(estimate.mean, estimate.error, estimate.count, reason)


def format_parts(cell: Cell, column: Column = ACCURACY) -> tuple[str, str]:
    """Return the mean and its uncertainty as tables print them: `± 0.4`, `[-0.2, +1.3]`, or empty if it is unknown."""
    if cell.mean is None:
        return cell.text or MISSING, ""
    number = f"{'+' if column.is_signed else ''}.{column.digits}f"
    if cell.interval is not None:
        uncertainty = f"[{cell.interval[0]:{number}}, {cell.interval[1]:{number}}]"
    elif column.kind == "difference":
        uncertainty = "(too few trials)"
    else:
        uncertainty = "" if cell.error is None else f"± {cell.error:.{column.digits}f}"
    return f"{cell.mean:{number}}", uncertainty


def format_cell(cell: Cell, column: Column = ACCURACY) -> str:
    """Return a cell as plain text, such as `81.2 ± 0.4`."""
    return " ".join(filter(None, format_parts(cell, column)))


def mark_best(columns: Sequence[Column], rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows with `is_best` set for the best cell of each ranked column, and for all that print the same."""
    best: list[str | None] = []
    for index, column in enumerate(columns):
        rivals = [row.cells[index] for row in rows if _is_comparable(row.cells[index], column)]
        choose = min if column.is_lower_better else max
        chosen = choose(rivals, key=lambda cell: cell.mean or 0.0) if len(rivals) > 1 else None
        best.append(None if chosen is None else format_parts(chosen, column)[0])
    return tuple(
        replace(
            row,
            cells=tuple(
                replace(cell, is_best=_is_comparable(cell, column) and format_parts(cell, column)[0] == text)
                for cell, column, text in zip(row.cells, columns, best, strict=True)
            ),
        )
        for row in rows
    )


def _is_comparable(cell: Cell, column: Column) -> bool:
    return cell.mean is not None and column.is_ranked and not cell.is_partial


@dataclass(frozen=True)
class Grid:
    """The methods of a dataset in the order of rows, and its test domains in the order of columns."""

    dataset: str
    algorithms: tuple[str, ...]
    domains: tuple[str, ...]


def build_grids(runs: Runs, variants: Mapping[str, Variant] | None = None) -> list[Grid]:
    """Return one grid per dataset, sorted by name: what was run, and what is planned."""
    rows = runs.frame.select("dataset", "algorithm", "test_domain", "position", "is_result").unique()
    positions = {(row["dataset"], row["test_domain"]): row["position"] for row in rows.iter_rows(named=True)}
    results = rows.filter("is_result").select("dataset", "algorithm", "test_domain").sort(pl.all())
    cells = [
        *results.iter_rows(),
        *((run.dataset, run.algorithm, domain) for run in select_results(runs.planned) for domain in run.test_domains),
    ]
    grids = []
    for dataset in sorted({cell[0] for cell in cells}):
        algorithms = sort_methods((cell[1] for cell in cells if cell[0] == dataset), variants)
        domains = dict.fromkeys(cell[2] for cell in cells if cell[0] == dataset)
        # The position of a domain is known from its first record on; until then it comes last.
        in_order = sorted(domains, key=lambda domain: positions.get((dataset, domain), len(cells)))
        grids.append(Grid(dataset, algorithms, tuple(in_order)))
    return grids


def select_results(planned: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Return the planned runs that fill cells; those that leave out two domains only help to select models."""
    runs = list(planned)
    datasets = {run.dataset for run in runs if len(run.test_domains) == 1}
    return [run for run in runs if len(run.test_domains) != 2 or run.dataset not in datasets]
