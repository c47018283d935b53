"""Footnotes of a table: what it is based on, how its models were selected, and why cells are empty."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import polars as pl

from domainwise.reports.cells import Grid, Row, select_results
from domainwise.selection import SELECTIONS
from domainwise.selection.metrics import ACCURACY, Metric
from domainwise.selection.runs import Runs
from domainwise.selection.statistics import pluralize
from domainwise.storage.discovery import BackboneSettings
from domainwise.storage.run_folder import RunStatus, State
from domainwise.storage.sweep_folder import PlannedRun

# A method and a column: a test domain, or a dataset in the table of averages.
Place = tuple[str, str]
OPEN_STATES: tuple[State, ...] = ("failed", "unfinished", "pending")
_REQUIRED = {
    "training_domain": ("training", "no holdout accuracy on the training domains, which training_domain needs"),
    "one_standard_error": ("training", "no holdout accuracy on the training domains, which one_standard_error needs"),
    "attacked_holdout": ("attacked", "no accuracy under attack, which attacked_holdout needs: --attack-radius"),
    "test_domain": ("holdout", "no holdout accuracy on the test domain, which test_domain needs"),
    "ood_validation": ("validation", "no validation domain, which ood_validation needs"),
}


def describe_selection(selection: str, metric: Metric = ACCURACY) -> str:
    """Return what a selection rule does, by the first line of its docstring."""
    line = (SELECTIONS[selection].__doc__ or "").strip().splitlines()[0]
    return f"Selected by {selection}: {metric.describe(line[:1].lower() + line[1:])}"


def describe_runs(frame: pl.DataFrame, selection: str, planned: Sequence[RunStatus]) -> str:
    """Return how many runs a table is based on, and how many planned ones are missing."""
    used = _filter_used(frame, selection)
    text = f"Based on {pluralize(used['run'].n_unique(), 'run')} ({pluralize(used['trial'].n_unique(), 'trial')})."
    states = [status.state for status in planned]
    counts = [f"{states.count(state)} {state}" for state in OPEN_STATES if state in states]
    return f"{text} Of {pluralize(len(states), 'planned run')}: {', '.join(counts)}." if counts else text


def describe_backbones(
    frame: pl.DataFrame, selection: str, backbones: Mapping[str, BackboneSettings], grid: Grid
) -> str:
    """Return the backbone and its batch norm mode, by method if they differ; empty if no run recorded them."""
    methods: dict[str, set[str]] = {}
    pairs = _filter_used(frame, selection).select("algorithm", "run").unique(maintain_order=True)
    for algorithm, run in pairs.iter_rows():
        methods.setdefault(str(backbones.get(run, "unknown")), set()).add(algorithm)
    if set(methods) <= {"unknown"}:
        return ""
    if len(methods) == 1:
        return f"Backbone: {next(iter(methods))}."
    parts = (
        f"{backbone} for {', '.join(name for name in grid.algorithms if name in names)}"
        for backbone, names in methods.items()
    )
    return f"Backbones: {'; '.join(parts)}."


def describe_races(planned: Mapping[PlannedRun, RunStatus]) -> str:
    """Return how many draws were stopped early; empty if none was."""
    races: dict[tuple[object, ...], list[RunStatus]] = {}
    for run, status in planned.items():
        races.setdefault((run.algorithm, run.test_domains, run.trial), []).append(status)
    counts = {
        (sum(status.state == "stopped" for status in statuses), len(statuses))
        for statuses in races.values()
        if len(statuses) > 1
    }
    stopped, totals = (sorted({count[index] for count in counts}) for index in (0, 1))
    if not any(stopped):
        return ""
    few, many = (f"{each[0]} to {each[-1]}" if len(each) > 1 else f"{each[0]}" for each in (stopped, totals))
    return f"{few} of {many} draws were stopped early by racing."


def describe_errors(rows: Sequence[Row]) -> str:
    """Return what ± means; empty for a table without numbers."""
    cells = [cell for row in rows for cell in row.cells if cell.mean is not None]
    if any(cell.error is not None for cell in cells):
        return "± is the standard error over trials: their standard deviation (ddof 1) over the root of their number."
    return "No ±: every cell is from a single trial." if cells else ""


def describe_draws(selected: pl.DataFrame, grid: Grid) -> str:
    """Return from how many hyperparameter draws the models were selected, and which cells had fewer."""
    smallest = selected.group_by("algorithm", "test_domain").agg(pl.col("draws").min())
    counts: dict[Place, int] = {(row[0], row[1]): row[2] for row in smallest.iter_rows()}
    largest = max(counts.values(), default=0)
    if not largest:
        return ""
    fewer: dict[int, list[Place]] = {}
    for place, count in counts.items():
        if count < largest:
            fewer.setdefault(count, []).append(place)
    exceptions = [f"only {count} for {format_places(places, grid)}" for count, places in sorted(fewer.items())]
    return "; ".join([f"Selected from {pluralize(largest, 'hyperparameter draw')} per trial", *exceptions]) + "."


def collect_reasons(rows: Iterable[Row], names: Iterable[str]) -> dict[Place, str]:
    """Return the reasons of cells, by method and the name of their column; `names` are of the first columns."""
    names = tuple(names)
    return {
        (row.algorithm, name): cell.reason
        for row in rows
        for name, cell in zip(names, row.cells, strict=False)
        if cell.reason
    }


def format_reasons(reasons: Mapping[Place, str], grid: Grid) -> list[str]:
    """Return one line per reason, with the cells it applies to."""
    by_reason: dict[str, list[Place]] = {}
    for place, reason in reasons.items():
        by_reason.setdefault(reason, []).append(place)
    return [f"{format_places(places, grid)}: {reason}." for reason, places in by_reason.items()]


def format_places(places: Iterable[Place], grid: Grid) -> str:
    """Return cells as short as possible: `mat on photo, sketch; ldat`, where a method alone means all its domains."""
    included = set(places)
    if included >= {(algorithm, domain) for algorithm in grid.algorithms for domain in grid.domains}:
        return "all cells"
    parts = []
    for algorithm in grid.algorithms:
        domains = [domain for domain in grid.domains if (algorithm, domain) in included]
        if domains:
            is_all = len(domains) == len(grid.domains) > 1
            parts.append(algorithm if is_all else f"{algorithm} on {', '.join(domains)}")
    return "; ".join(parts)


def explain_missing(
    runs: Runs, selection: str, dataset: str, algorithm: str, domain: str, *, trials: Collection[int]
) -> str:
    """Return why `selection` selected no model for these trials of a cell."""
    rows = runs.frame.filter(
        pl.col("dataset") == dataset, pl.col("algorithm") == algorithm, pl.col("trial").is_in(list(trials))
    )
    planned = [
        runs.planned[run]
        for run in select_results(runs.planned)
        if (run.dataset, run.algorithm) == (dataset, algorithm) and domain in run.test_domains and run.trial in trials
    ]
    results = rows.filter("is_result", pl.col("test_domain") == domain)
    if results.is_empty():
        return _format_open_runs(planned) or ("run done, but its records could not be used" if planned else "no runs")
    if results["main"].is_null().all():
        name = runs.metric.name
        if name == "accuracy":
            return "no accuracy on the test domain was recorded"
        return f"{name} was not recorded: train with --metrics {name}"
    if selection == "leave_one_out":
        return _explain_leave_one_out(rows, results, domain)
    column, reason = _REQUIRED[selection]
    return runs.metric.describe(reason) if results[column].is_null().all() else "no record is complete"


def _filter_used(frame: pl.DataFrame, selection: str) -> pl.DataFrame:
    """Return the rows that a table is based on; those without a number on the test domain are none of them."""
    measured = frame.filter(pl.col("main").is_not_null())
    return measured if selection == "leave_one_out" else measured.filter("is_result")


def _format_open_runs(planned: Sequence[RunStatus]) -> str:
    """Return how many planned runs failed, are unfinished or pending; empty if all are done."""
    parts = []
    for state in OPEN_STATES:
        statuses = [status for status in planned if status.state == state]
        if not statuses:
            continue
        share = (
            f"{len(statuses)} of {len(planned)} runs" if len(statuses) < len(planned) else f"all {len(planned)} runs"
        )
        text = f"{'run' if len(planned) == 1 else share} {state}"
        if state == "failed":
            errors = dict.fromkeys(" ".join(status.error.split()) or "no message" for status in statuses)
            more = f" (+{pluralize(len(errors) - 1, 'other error')})" if len(errors) > 1 else ""
            text += f": {next(iter(errors))}{more}"
        parts.append(text)
    return ", ".join(parts)


def _explain_leave_one_out(rows: pl.DataFrame, results: pl.DataFrame, domain: str) -> str:
    requirement = "leave_one_out needs runs that leave out two domains"
    single = results.filter(pl.col("test_domains").list.len() == 1)
    if single.is_empty():
        return f"{requirement}; these test on {len(results['test_domains'][0])} domains at once"
    searches = single.select("trial", "draw", "num_domains").unique()
    required = int((searches["num_domains"] - 1).sum())
    pairs = rows.filter(pl.col("test_domains").list.len() == 2, pl.col("test_domains").list.contains(domain))
    helpers = pairs.filter(pl.col("test_domain") != domain).join(searches, on=["trial", "draw"], how="semi")
    missing = required - helpers.select("trial", "draw", "test_domain").unique().height
    if missing > 0:
        return f"{requirement}; {missing} of {required} missing"
    return f"{requirement}; no step has a record in all of them"
