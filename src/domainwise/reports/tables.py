"""Tables of a metric: one per dataset (methods by test domains), and one of averages (methods by datasets)."""

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import polars as pl

from domainwise.reports import footnotes
from domainwise.reports.cells import Cell, Column, Grid, Kind, Row, Table, estimate_cell, mark_best
from domainwise.selection.metrics import ACCURACY, Metric
from domainwise.selection.runs import Runs

EXTRA_COLUMNS: Mapping[Kind, str] = {
    "worst": "worst: lowest accuracy over the test domains.",
    "gap": "gap: accuracy on the training domains' holdouts minus accuracy on the test domains, in points.",
    "training": "training: accuracy of the selected models on the training domains' holdouts.",
}


def build_dataset_table(
    runs: Runs, selected: pl.DataFrame, selection: str, grid: Grid, extra: Collection[str] = ()
) -> Table:
    """Build the table of one dataset.

    Args:
        selected: what `selection` returned for all runs.
        extra: names of `EXTRA_COLUMNS` to add.
    """
    selected = selected.filter(pl.col("dataset") == grid.dataset)
    planned = {run: status for run, status in runs.planned.items() if run.dataset == grid.dataset}
    frame = runs.frame.filter(pl.col("dataset") == grid.dataset)
    trials = {*frame["trial"].to_list(), *(run.trial for run in planned)}
    extras = [kind for kind in EXTRA_COLUMNS if kind in extra]
    is_low = runs.metric.is_lower_better
    columns = (
        *(Column(domain, "domain", grid.dataset, domain, is_low) for domain in grid.domains),
        Column("Avg", "average", grid.dataset, is_lower_better=is_low),
        *(Column(kind, kind, grid.dataset, is_lower_better=is_low) for kind in extras),
    )
    rows = []
    for algorithm in grid.algorithms:
        models = selected.filter(pl.col("algorithm") == algorithm)
        accuracies: dict[str, dict[int, float]] = {domain: {} for domain in grid.domains}
        for domain, trial, accuracy in models.select("test_domain", "trial", "accuracy").iter_rows():
            accuracies[domain][trial] = accuracy
        cells = [
            _domain_cell(runs, accuracies[domain], selection, (grid.dataset, algorithm, domain), trials)
            for domain in grid.domains
        ]
        extra_cells = (_extra_cell(kind, cells, models, runs.metric) for kind in extras)
        rows.append(Row(algorithm, (*cells, _average(cells, grid.domains), *extra_cells)))
    notes = [
        footnotes.describe_runs(frame, selection, list(planned.values())),
        footnotes.describe_selection(selection, runs.metric),
        footnotes.describe_draws(selected, grid),
        footnotes.describe_races(planned),
        footnotes.describe_backbones(frame, selection, runs.backbones, grid),
        footnotes.describe_errors(rows),
        *_describe_extras(extras, runs.metric),
        *footnotes.format_reasons(footnotes.collect_reasons(rows, grid.domains), grid),
    ]
    shown = tuple(note for note in notes if note)
    return Table(grid.dataset, selection, columns, mark_best(columns, rows), shown, runs.metric.name)


def build_averages_table(
    selected: pl.DataFrame,
    selection: str,
    grids: Sequence[Grid],
    tables: Sequence[Table],
    algorithms: tuple[str, ...],
    extra: Collection[str] = (),
    metric: Metric = ACCURACY,
) -> Table:
    """Build the averages over test domains of the datasets that `tables` show one by one.

    With a single dataset there is no column for the average over datasets.
    """
    datasets = tuple(grid.dataset for grid in grids)
    has_average, extras = len(grids) > 1, [kind for kind in EXTRA_COLUMNS if kind in extra]
    is_low = metric.is_lower_better
    columns = (
        *(Column(name, "average_over_trials", name, is_lower_better=is_low) for name in datasets),
        *([Column("Avg", "average_of_datasets", is_lower_better=is_low)] if has_average else []),
        *(Column(kind, kind, is_lower_better=is_low) for kind in extras),
    )
    trials = dict(selected.group_by("dataset").agg(pl.col("trial").n_unique()).iter_rows())
    rows = []
    for algorithm in algorithms:
        models = selected.filter(pl.col("algorithm") == algorithm)
        cells = [
            _dataset_cell(models, grid, table, algorithm, trials.get(grid.dataset, 0))
            for grid, table in zip(grids, tables, strict=True)
        ]
        average = [_average_datasets(cells, datasets)] if has_average else []
        extra_cells = (_combine_extra(kind, tables, algorithm, metric) for kind in extras)
        rows.append(Row(algorithm, (*cells, *average, *extra_cells)))
    notes = (
        "Mean over test domains per trial, then mean ± standard error over trials.",
        *(["Avg: mean over datasets."] if has_average else []),
        *_describe_extras(extras, metric),
        footnotes.describe_selection(selection, metric),
        *footnotes.format_reasons(footnotes.collect_reasons(rows, datasets), Grid("", algorithms, datasets)),
    )
    return Table("Averages", selection, columns, mark_best(columns, rows), notes, metric.name)


def _describe_extras(extras: Iterable[Kind], metric: Metric) -> list[str]:
    return [metric.describe(EXTRA_COLUMNS[kind]) for kind in extras]


def _domain_cell(
    runs: Runs, accuracies: Mapping[int, float], selection: str, place: tuple[str, str, str], trials: Collection[int]
) -> Cell:
    """Return the cell of the accuracies by trial; `place` is its dataset, method and test domain."""
    missing = set(trials) - set(accuracies)
    if not missing:
        return estimate_cell(list(accuracies.values()))
    reason = footnotes.explain_missing(runs, selection, *place, trials=missing)
    if accuracies:
        reason = f"only {len(accuracies)} of {len(trials)} trials ({reason})"
    return estimate_cell(list(accuracies.values()), reason)


def _average(cells: Sequence[Cell], names: Collection[str]) -> Cell:
    """Return the mean of unrounded cells, missing if any of them is."""
    missing = [name for name, cell in zip(names, cells, strict=True) if cell.mean is None]
    if missing:
        return Cell(None, reason=f"missing: {', '.join(missing)}")
    return Cell(statistics.fmean(cell.mean or 0.0 for cell in cells), trials=min(cell.trials for cell in cells))


def _extra_cell(kind: str, cells: Sequence[Cell], models: pl.DataFrame, metric: Metric) -> Cell:
    if kind == "worst":
        means = [cell.mean for cell in cells if cell.mean is not None]
        return (
            Cell(_find_worst(means, metric))
            if len(means) == len(cells)
            else Cell(None, reason="a test domain is missing")
        )
    if models.is_empty() or models["training"].is_null().any():
        return Cell(None, reason="no model selected" if models.is_empty() else metric.describe("no holdout accuracy"))
    training = 100 * statistics.fmean(models["training"].to_list())
    test = 100 * statistics.fmean(models["accuracy"].to_list())
    return Cell(training if kind == "training" else training - test, trials=models["trial"].n_unique())


def _dataset_cell(models: pl.DataFrame, grid: Grid, table: Table, algorithm: str, trials: int) -> Cell:
    models = models.filter(pl.col("dataset") == grid.dataset)
    if models.is_empty():
        reasons = [cell.reason for row in table.rows if row.algorithm == algorithm for cell in row.cells]
        return Cell(None, reason=reasons[0] if reasons else "no runs")
    return average_cell(models, grid, trials)


def average_cell(models: pl.DataFrame, grid: Grid, trials: int) -> Cell:
    """Return the mean over test domains per trial, then over trials; `trials` is the number that there should be."""
    by_trial = average_over_domains(models)
    partial = by_trial.filter(pl.col("domains") < len(grid.domains))["trial"].to_list()
    reasons = [f"not all {len(grid.domains)} test domains in trial {', '.join(map(str, partial))}"] if partial else []
    if by_trial.height < trials:
        reasons.append(f"only {by_trial.height} of {trials} trials")
    cell = estimate_cell(by_trial["accuracy"].to_list(), ", ".join(reasons))
    return replace(cell, is_partial=bool(partial))


def average_over_domains(models: pl.DataFrame) -> pl.DataFrame:
    """Return the mean `accuracy` over test domains per trial, and the number of `domains`."""
    return models.group_by("trial").agg(pl.col("accuracy").mean(), domains=pl.len()).sort("trial")


def _average_datasets(cells: Sequence[Cell], datasets: Sequence[str]) -> Cell:
    partial = [name for name, cell in zip(datasets, cells, strict=True) if cell.is_partial]
    average = _average(cells, datasets)
    if average.mean is None or not partial:
        return average
    return replace(average, reason=f"not all test domains of {', '.join(partial)}", is_partial=True)


def _find_worst(means: Sequence[float], metric: Metric) -> float:
    return max(means) if metric.is_lower_better else min(means)


def _combine_extra(kind: Kind, tables: Sequence[Table], algorithm: str, metric: Metric) -> Cell:
    """Return an extra column of all datasets' tables in one cell: the worst `worst`, the mean of any other."""
    means = [
        cell.mean
        for table in tables
        for row in table.rows
        if row.algorithm == algorithm
        for column, cell in zip(table.columns, row.cells, strict=True)
        if column.kind == kind and cell.mean is not None
    ]
    if len(means) < len(tables):
        return Cell(None, reason="not available for every dataset")
    return Cell(_find_worst(means, metric) if kind == "worst" else statistics.fmean(means))
