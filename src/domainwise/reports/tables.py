"""A dataset's table: a row a method, a column a test domain, their mean, and what explains it."""

import statistics
from collections.abc import Collection, Mapping

import polars as pl

from domainwise.reports import footnotes
from domainwise.reports.cells import Cell, Column, Kind, Row, Table, summarized, with_best
from domainwise.reports.grid import Grid
from domainwise.reports.reasons import why_missing
from domainwise.selection.read import Runs

EXTRA_COLUMNS: tuple[Kind, ...] = ("worst", "gap", "training")
_EXPLAINED = {
    "worst": "worst: the lowest of a method's test domains.",
    "gap": "gap: accuracy on the training domains' holdouts minus that on the test domains, in points.",
    "training": "training: accuracy of the chosen models on the training domains' holdouts.",
}


def dataset_table(runs: Runs, chosen: pl.DataFrame, selection: str, grid: Grid, extra: Collection[str] = ()) -> Table:
    """The table of one dataset from what `selection` chose of all runs."""
    own = chosen.filter(pl.col("dataset") == grid.dataset)
    planned = [run for run in runs.planned if run.dataset == grid.dataset]
    frame = runs.frame.filter(pl.col("dataset") == grid.dataset)
    trials = {*frame["trial"].to_list(), *(run.trial for run in planned)}
    extras = [kind for kind in EXTRA_COLUMNS if kind in extra]
    columns = (
        *(Column(domain, "domain", grid.dataset, domain) for domain in grid.domains),
        Column("Avg", "average", grid.dataset),
        *(Column(kind, kind, grid.dataset) for kind in extras),
    )
    rows = []
    for algorithm in grid.algorithms:
        mine = own.filter(pl.col("algorithm") == algorithm)
        there: dict[str, dict[int, float]] = {domain: {} for domain in grid.domains}
        for domain, trial, accuracy in mine.select("test_domain", "trial", "accuracy").iter_rows():
            there[domain][trial] = accuracy
        cells = [
            _cell(runs, there[domain], selection, (grid.dataset, algorithm, domain), trials) for domain in grid.domains
        ]
        rows.append(Row(algorithm, (*cells, average(cells, grid.domains), *(_extra(k, cells, mine) for k in extras))))
    notes = [
        footnotes.rests_on(frame, selection, planned),
        footnotes.chosen_by(selection),
        footnotes.draws(own, grid),
        footnotes.what_errors_are(rows),
        *(_EXPLAINED[kind] for kind in extras),
        *footnotes.reasons(_reasons(rows, grid), grid),
    ]
    return Table(grid.dataset, selection, columns, with_best(columns, rows), tuple(note for note in notes if note))


def average(cells: list[Cell], names: Collection[str]) -> Cell:
    """The mean of unrounded cells, missing if any is."""
    empty = [name for name, cell in zip(names, cells, strict=True) if cell.mean is None]
    if empty:
        return Cell(None, reason=f"missing: {', '.join(empty)}")
    return Cell(statistics.fmean(cell.mean or 0.0 for cell in cells), trials=min(cell.trials for cell in cells))


def _cell(
    runs: Runs, there: Mapping[int, float], selection: str, place: tuple[str, str, str], trials: Collection[int]
) -> Cell:
    """The cell of the accuracies that are there, by trial; `place` is its dataset, method and test domain."""
    absent = set(trials) - set(there)
    if not absent:
        return summarized(list(there.values()))
    why = why_missing(runs, selection, *place, trials=absent)
    return summarized(list(there.values()), f"only {len(there)} of {len(trials)} trials ({why})" if there else why)


def _extra(kind: str, cells: list[Cell], mine: pl.DataFrame) -> Cell:
    if kind == "worst":
        means = [cell.mean for cell in cells if cell.mean is not None]
        return Cell(min(means)) if len(means) == len(cells) else Cell(None, reason="a test domain is missing")
    if mine.is_empty() or mine["training"].is_null().any():
        return Cell(None, reason="nothing was chosen" if mine.is_empty() else "no holdout")
    training = 100 * statistics.fmean(mine["training"].to_list())
    test = 100 * statistics.fmean(mine["accuracy"].to_list())
    return Cell(training if kind == "training" else training - test, trials=mine["trial"].n_unique())


def _reasons(rows: list[Row], grid: Grid) -> dict[tuple[str, str], str]:
    return {
        (row.algorithm, domain): cell.reason
        for row in rows
        for domain, cell in zip(grid.domains, row.cells, strict=False)
        if cell.reason
    }
