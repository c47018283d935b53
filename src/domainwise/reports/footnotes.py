"""What stands under a table: what it rests on, how it was chosen, and why cells are empty."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import polars as pl

from domainwise.reports.cells import Grid, Row, reported
from domainwise.selection import SELECTIONS
from domainwise.selection.runs import Runs
from domainwise.storage.run_folder import RunStatus

Place = tuple[str, str]


def chosen_by(selection: str) -> str:
    """The selection in a sentence: its function's own."""
    sentence = (SELECTIONS[selection].__doc__ or "").strip().splitlines()[0]
    return f"Chosen by {selection}: {sentence[:1].lower()}{sentence[1:]}"


def rests_on(frame: pl.DataFrame, selection: str, planned: Sequence[RunStatus]) -> str:
    """How many runs a table was made from, and how many more there should be."""
    used = frame if selection == "leave_one_out" else frame.filter("is_result")
    trials = used["trial"].n_unique()
    text = f"Rests on {counted(used['run'].n_unique(), 'run')} of {counted(trials, 'trial')}."
    states = [run.state for run in planned]
    open_ = [
        f"{states.count(state)} {words}"
        for state, words in (("failed", "failed"), ("unfinished", "not finished"), ("pending", "not started"))
        if state in states
    ]
    return f"{text} Of {counted(len(states), 'planned run')}: {', '.join(open_)}." if open_ else text


def what_errors_are(rows: Sequence[Row]) -> str:
    """What stands after a mean; nothing to say of a table without numbers."""
    cells = [cell for row in rows for cell in row.cells if cell.mean is not None]
    if any(cell.error is not None for cell in cells):
        return "± is the standard error over trials: their standard deviation over the root of their number."
    return "No ±: each cell is of one trial." if cells else ""


def draws(chosen: pl.DataFrame, grid: Grid) -> str:
    """From how many draws of the hyperparameters the models were chosen, and where from fewer."""
    fewest = chosen.group_by("algorithm", "test_domain").agg(pl.col("draws").min())
    counts: dict[Place, int] = {(row[0], row[1]): row[2] for row in fewest.iter_rows()}
    most = max(counts.values(), default=0)
    if not most:
        return ""
    text = f"Each trial's model was chosen from {counted(most, 'draw')} of the hyperparameters"
    fewer: dict[str, list[Place]] = {}
    for place, count in counts.items():
        if count < most:
            fewer.setdefault(f"from {count}", []).append(place)
    less = "; ".join(f"{words}: {where(places, grid)}" for words, places in sorted(fewer.items()))
    return f"{text}; {less}." if less else f"{text}."


def reasons(found: Mapping[Place, str], grid: Grid) -> list[str]:
    """One line a reason, with the cells it holds for."""
    by_reason: dict[str, list[Place]] = {}
    for place, reason in found.items():
        by_reason.setdefault(reason, []).append(place)
    return [f"{where(places, grid)}: {reason}." for reason, places in by_reason.items()]


def where(places: Iterable[Place], grid: Grid) -> str:
    """Cells in words, as few as will do: `mat on photo, sketch; ldat`, a method alone for all its domains."""
    there = set(places)
    if there >= {(algorithm, domain) for algorithm in grid.algorithms for domain in grid.domains}:
        return "all cells"
    parts = []
    for algorithm in grid.algorithms:
        domains = [domain for domain in grid.domains if (algorithm, domain) in there]
        if domains:
            parts.append(algorithm if _is_all(domains, grid.domains) else f"{algorithm} on {', '.join(domains)}")
    return "; ".join(parts)


def _is_all(some: Collection[str], domains: Collection[str]) -> bool:
    return len(some) == len(domains) > 1


def counted(number: int, thing: str) -> str:
    """`1 trial`, `3 trials`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


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
        runs.planned[run]
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


def standing(planned: Sequence[RunStatus]) -> str:
    """How planned runs stand that are not done; empty if all are."""
    failed = [run for run in planned if run.state == "failed"]
    parts = []
    if failed:
        errors = dict.fromkeys(" ".join(run.error.split()) or "no message" for run in failed)
        others = len(errors) - 1
        more = f" (and {others} other {'error' if others == 1 else 'errors'})" if others else ""
        parts.append(f"{_share(len(failed), len(planned))} failed: {next(iter(errors))}{more}")
    for state, words in (("unfinished", "not finished"), ("pending", "not started")):
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
