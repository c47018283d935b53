"""A table as data: cells that know what they rest on, before any format."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from domainwise.selection.runs import Runs
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
    "pairs",
    "ahead",
    "p",
]


@dataclass(frozen=True)
class Cell:
    """A number, unrounded, accuracies in percent; or the reason why there is none.

    Args:
        error: standard error over trials; None where one trial, or no trial at all, says nothing of it.
        reason: why the number is missing, or rests on less than others do.
        is_partial: whether it is of fewer test domains than others are, so that it cannot be compared with them.
    """

    mean: float | None
    error: float | None = None
    trials: int = 0
    reason: str = ""
    is_partial: bool = False
    is_best: bool = False


@dataclass(frozen=True)
class Column:
    """What a column shows, of which dataset and test domain; empty where it is of several."""

    name: str
    kind: Kind
    dataset: str = ""
    domain: str = ""

    @property
    def digits(self) -> int:
        return {"pairs": 0, "ahead": 0, "p": 4}.get(self.kind, 1)

    @property
    def is_signed(self) -> bool:
        return self.kind in ("gap", "difference")

    @property
    def is_ranked(self) -> bool:
        """Whether the highest is the best: not so of what only explains other columns."""
        return self.kind in ("domain", "average", "worst", "average_over_trials", "average_of_datasets")


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


def summarized(accuracies: Sequence[float], reason: str = "") -> Cell:
    """The cell of accuracies in 0..1, one a trial: their mean and its standard error, as DomainBed reckons it."""
    points = [100 * accuracy for accuracy in accuracies]
    if not points:
        return Cell(None, reason=reason)
    error = statistics.pstdev(points) / len(points) ** 0.5 if len(points) > 1 else None
    return Cell(statistics.fmean(points), error, len(points), reason)


def shown(cell: Cell, column: Column) -> tuple[str, str]:
    """The mean and the error as tables print them; the error is empty where there is none."""
    if cell.mean is None:
        return MISSING, ""
    sign = "+" if column.is_signed else ""
    return f"{cell.mean:{sign}.{column.digits}f}", "" if cell.error is None else f"{cell.error:.{column.digits}f}"


def with_best(columns: Sequence[Column], rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows with the best of each ranked column marked, and whatever prints as the same number."""
    best: list[str | None] = []
    for index, column in enumerate(columns):
        rivals = [row.cells[index] for row in rows if _competes(row.cells[index], column)]
        best.append(shown(max(rivals, key=lambda cell: cell.mean or 0.0), column)[0] if len(rivals) > 1 else None)
    return tuple(
        replace(
            row,
            cells=tuple(
                replace(cell, is_best=_competes(cell, column) and shown(cell, column)[0] == top)
                for cell, column, top in zip(row.cells, columns, best, strict=True)
            ),
        )
        for row in rows
    )


def _competes(cell: Cell, column: Column) -> bool:
    return cell.mean is not None and column.is_ranked and not cell.is_partial


# The paper's: what it starts from, the published baselines, what it proposes.
METHOD_ORDER = (
    "erm",
    "at",
    "irm",
    "vrex",
    "groupdro",
    "mixup",
    "mldg",
    "mmd",
    "coral",
    "dann",
    "mtl",
    "sagnet",
    "rsc",
    "andmask",
    "gut",
    "ncdg",
    "uat",
    "mat",
    "ldat",
)


@dataclass(frozen=True)
class Grid:
    """A dataset's methods in the paper's order, its test domains in the dataset's own."""

    dataset: str
    algorithms: tuple[str, ...]
    domains: tuple[str, ...]


def grids(runs: Runs) -> list[Grid]:
    """One grid a dataset, by name."""
    rows = runs.frame.select("dataset", "algorithm", "test_domain", "position", "is_result").unique()
    positions = {(row["dataset"], row["test_domain"]): row["position"] for row in rows.iter_rows(named=True)}
    results = rows.filter("is_result").select("dataset", "algorithm", "test_domain").sort(pl.all())
    cells = [
        *results.iter_rows(),
        *((run.dataset, run.algorithm, domain) for run in reported(runs.planned) for domain in run.test_domains),
    ]
    found = []
    for dataset in sorted({cell[0] for cell in cells}):
        domains = dict.fromkeys(cell[2] for cell in cells if cell[0] == dataset)
        # A domain that no run got to has no place yet; it comes last.
        ordered = sorted(domains, key=lambda domain: positions.get((dataset, domain), len(cells)))
        found.append(Grid(dataset, in_order(cell[1] for cell in cells if cell[0] == dataset), tuple(ordered)))
    return found


def reported(planned: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Planned runs whose accuracies count; those that leave out a pair of domains only help to select."""
    runs = list(planned)
    with_single = {run.dataset for run in runs if len(run.test_domains) == 1}
    return [run for run in runs if len(run.test_domains) != 2 or run.dataset not in with_single]


def in_order(algorithms: Iterable[str]) -> tuple[str, ...]:
    """Each method once: known ones in the paper's order, others by name after them."""
    places = {name: place for place, name in enumerate(METHOD_ORDER)}
    return tuple(sorted(set(algorithms), key=lambda name: (places.get(name, len(places)), name)))
