"""A dataset's table: a row a method, a column a test domain, their mean, and what explains it."""

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import polars as pl

from domainwise.reports import footnotes
from domainwise.reports.cells import Cell, Column, Grid, Kind, Row, Table, in_order, summarized, with_best
from domainwise.reports.footnotes import why_missing
from domainwise.selection.runs import Runs

EXTRA_COLUMNS: tuple[Kind, ...] = ("worst", "gap", "training")
_EXPLAINED = {
    "worst": "worst: the lowest of a method's test domains.",
    "gap": "gap: accuracy on the training domains' holdouts minus that on the test domains, in points.",
    "training": "training: accuracy of the chosen models on the training domains' holdouts.",
}


def dataset_table(runs: Runs, chosen: pl.DataFrame, selection: str, grid: Grid, extra: Collection[str] = ()) -> Table:
    """The table of one dataset from what `selection` chose of all runs."""
    own = chosen.filter(pl.col("dataset") == grid.dataset)
    planned = {run: status for run, status in runs.planned.items() if run.dataset == grid.dataset}
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
        footnotes.rests_on(frame, selection, list(planned.values())),
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


_RULE = "For every trial the mean over the test domains that are there, then mean ± standard error over trials."


def averages_table(
    chosen: pl.DataFrame, selection: str, grids: Sequence[Grid], tables: Sequence[Table], extra: Collection[str] = ()
) -> Table:
    """The averages over test domains of the datasets that `tables` show one by one.

    A column of one dataset only would be its own average, so that one is left out then.
    """
    names = [grid.dataset for grid in grids]
    algorithms = in_order(name for grid in grids for name in grid.algorithms)
    shows_mean, shows_training = len(grids) > 1, "training" in extra
    columns = (
        *(Column(name, "average_over_trials", name) for name in names),
        *([Column("Avg", "average_of_datasets")] if shows_mean else []),
        *([Column("training", "training")] if shows_training else []),
    )
    trials = dict(chosen.group_by("dataset").agg(pl.col("trial").n_unique()).iter_rows())
    rows = []
    for algorithm in algorithms:
        mine = chosen.filter(pl.col("algorithm") == algorithm)
        cells = [
            _average_cell(mine, grid, table, algorithm, trials.get(grid.dataset, 0))
            for grid, table in zip(grids, tables, strict=True)
        ]
        rows.append(
            Row(
                algorithm,
                (
                    *cells,
                    *([_mean_of_means(cells, names)] if shows_mean else []),
                    *([_training(mine, names)] if shows_training else []),
                ),
            )
        )
    whole = Grid("", algorithms, tuple(names))
    found = {
        (row.algorithm, name): cell.reason
        for row in rows
        for name, cell in zip(names, row.cells, strict=False)
        if cell.reason
    }
    notes = (
        _RULE,
        *(["Avg is the mean of the datasets' means."] if shows_mean else []),
        *(["training: accuracy of the chosen models on their training domains' holdouts."] if shows_training else []),
        footnotes.chosen_by(selection),
        *footnotes.reasons(found, whole),
    )
    return Table("Averages", selection, columns, with_best(columns, rows), notes)


def _average_cell(mine: pl.DataFrame, grid: Grid, table: Table, algorithm: str, trials: int) -> Cell:
    own = mine.filter(pl.col("dataset") == grid.dataset)
    if own.is_empty():
        reasons = [cell.reason for row in table.rows if row.algorithm == algorithm for cell in row.cells]
        return Cell(None, reason=reasons[0] if reasons else "no runs")
    by_trial = own.group_by("trial").agg(pl.col("accuracy").mean(), domains=pl.len()).sort("trial")
    lacking = by_trial.filter(pl.col("domains") < len(grid.domains))["trial"].to_list()
    reasons = [f"not all {len(grid.domains)} test domains in trial {', '.join(map(str, lacking))}"] if lacking else []
    if by_trial.height < trials:
        reasons.append(f"only {by_trial.height} of {trials} trials")
    cell = summarized(by_trial["accuracy"].to_list(), ", ".join(reasons))
    return replace(cell, is_partial=bool(lacking))


def _mean_of_means(cells: list[Cell], names: Sequence[str]) -> Cell:
    partial = [name for name, cell in zip(names, cells, strict=True) if cell.is_partial]
    cell = average(cells, names)
    if cell.mean is None or not partial:
        return cell
    return replace(cell, reason=f"not all test domains of {', '.join(partial)}", is_partial=True)


def _training(mine: pl.DataFrame, names: Sequence[str]) -> Cell:
    by_dataset = mine.group_by("dataset").agg(pl.col("training").mean(), missing=pl.col("training").null_count())
    if by_dataset.height < len(names) or by_dataset["missing"].sum():
        return Cell(None, reason="not known on every dataset")
    return Cell(100 * statistics.fmean(by_dataset["training"].to_list()))
