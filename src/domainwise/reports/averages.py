"""The table over datasets: what a method has on each, with errors over trials, and on average."""

import statistics
from collections.abc import Collection, Sequence
from dataclasses import replace

import polars as pl

from domainwise.reports import footnotes
from domainwise.reports.cells import Cell, Column, Row, Table, summarized, with_best
from domainwise.reports.grid import Grid, in_order
from domainwise.reports.tables import average

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
            _cell(mine, grid, table, algorithm, trials.get(grid.dataset, 0))
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


def _cell(mine: pl.DataFrame, grid: Grid, table: Table, algorithm: str, trials: int) -> Cell:
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
