"""Why a cell is empty, in words that say what to do about it."""

from collections.abc import Collection, Sequence

import polars as pl

from domainwise.reports.grid import reported
from domainwise.selection.planned import Planned
from domainwise.selection.read import Runs

_NEEDS = {
    "training_domain": ("training", "no holdout: training_domain cannot select"),
    "test_domain": ("holdout", "no holdout: test_domain cannot select"),
    "ood_validation": ("validation", "no validation domain: ood_validation cannot select"),
}


def why_missing(
    runs: Runs, selection: str, dataset: str, algorithm: str, domain: str, *, trials: Collection[int]
) -> str:
    """Why `selection` chose nothing for these trials of a cell."""
    task = runs.frame.filter(
        pl.col("dataset") == dataset, pl.col("algorithm") == algorithm, pl.col("trial").is_in(list(trials))
    )
    planned = [
        run
        for run in reported(runs.planned)
        if (run.dataset, run.algorithm) == (dataset, algorithm) and domain in run.test_domains and run.trial in trials
    ]
    own = task.filter("is_result", pl.col("test_domain") == domain)
    if own.is_empty():
        return standing(planned) or ("done, but its records cannot be used" if planned else "no runs")
    if own["main"].is_null().all():
        return "no accuracy on the test domain was recorded"
    if selection == "leave_one_out":
        return _without_pairs(task, own, domain)
    return _NEEDS[selection][1] if own[_NEEDS[selection][0]].is_null().all() else "no record has all that it needs"


def standing(planned: Sequence[Planned]) -> str:
    """How planned runs stand that are not done; empty if all are."""
    failed = [run for run in planned if run.state == "failed"]
    parts = []
    if failed:
        errors = dict.fromkeys(" ".join(run.error.split()) or "no message" for run in failed)
        others = len(errors) - 1
        more = f" (and {others} other {'error' if others == 1 else 'errors'})" if others else ""
        parts.append(f"{_share(len(failed), len(planned))} failed: {next(iter(errors))}{more}")
    for state, words in (("unfinished", "not finished"), ("to do", "not started")):
        count = sum(run.state == state for run in planned)
        if count:
            parts.append(f"{_share(count, len(planned))} {'is' if count == 1 else 'are'} {words}")
    return ", ".join(parts)


def _share(count: int, total: int) -> str:
    if count < total:
        return f"{count} of {total} runs"
    return "its run" if total == 1 else f"all {total} runs"


def _without_pairs(task: pl.DataFrame, own: pl.DataFrame, domain: str) -> str:
    needs = "leave_one_out needs runs that leave out pairs of domains"
    alone = own.filter(pl.col("test_domains").list.len() == 1)
    if alone.is_empty():
        return f"{needs}; these test on {len(own['test_domains'][0])} domains at once"
    searches = alone.select("trial", "draw", "num_domains").unique()
    needed = int((searches["num_domains"] - 1).sum())
    pairs = task.filter(pl.col("test_domains").list.len() == 2, pl.col("test_domains").list.contains(domain))
    there = pairs.filter(pl.col("test_domain") != domain).join(searches, on=["trial", "draw"], how="semi")
    missing = needed - there.select("trial", "draw", "test_domain").unique().height
    if missing > 0:
        return f"{needs}; {missing} of {needed} {'is' if missing == 1 else 'are'} missing"
    return f"{needs}; they are there, but at no step do all have a record"
