"""Paired comparison of every method with one of them: is it better, or was it luck?"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from domainwise.errors import unknown_choice
from domainwise.reports.cells import Cell, Column, Row, Table
from domainwise.reports.footnotes import describe_selection
from domainwise.selection.metrics import ACCURACY, Metric
from domainwise.selection.statistics import pair_trials
from domainwise.selection.verdicts import LEVEL, MARGIN, MIN_PILOT, Judgement, judge_differences
from domainwise.storage.sweep_folder import PlannedRun

_MAX_PROBLEMS = 5


def build_comparison(
    selected: pl.DataFrame,
    selection: str,
    algorithms: Sequence[str],
    baseline: str,
    margin: float = MARGIN,
    *,
    failures: Mapping[PlannedRun, str] | None = None,
    is_sequential: bool = False,
    metric: Metric = ACCURACY,
) -> Table:
    """Judge for every method whether it is above `baseline`, by the trials that both have; see `judge_differences`.

    Of a metric that should be low, the claim is that the method is below `baseline`.

    Args:
        failures: see `domainwise.selection.runs.find_failures`.
    """
    if baseline not in algorithms:
        raise unknown_choice("method to compare to", baseline, algorithms)
    reference = selected.filter(pl.col("algorithm") == baseline)
    # How much better a method is.
    sign = -1.0 if metric.is_lower_better else 1.0
    paired = {
        algorithm: replace(each, differences=[sign * value for value in each.differences])
        for algorithm in algorithms
        if algorithm != baseline
        for own in [{run: error for run, error in (failures or {}).items() if run.algorithm in (algorithm, baseline)}]
        for each in [pair_trials(selected.filter(pl.col("algorithm") == algorithm), reference, own)]
    }
    judgements = judge_differences(paired, margin=margin, is_sequential=is_sequential)
    has_collapsed = not all(each.is_sound for each in paired.values())
    columns = (
        Column(f"difference to {baseline}", "difference"),
        *([Column("collapsed", "collapsed")] if has_collapsed else []),
        Column("trials", "trials"),
        Column("wins", "wins"),
        Column("verdict", "verdict"),
        Column("trials needed", "trials_needed"),
    )
    rows = tuple(
        Row(algorithm, _build_cells(each, baseline, sign, has_collapsed)) for algorithm, each in judgements.items()
    )
    notes = (
        *(describe_verdicts(list(judgements.values())) if rows else ["There is no other method."]),
        *(["Trials were added until claims were decided, which the intervals allow for."] if is_sequential else []),
        "The difference of a trial is the mean over the test domains, then over the datasets, that the method and "
        f"{baseline} both have; only trials with all of them count. wins: trials in which the method is better.",
        f"Verdicts are on the claim that the method is {'below' if metric.is_lower_better else 'above'} {baseline}"
        f"{f': a lower {metric.title} is better' if metric.is_lower_better else ''}.",
        *(f"{row.algorithm}: {row.cells[0].reason}." for row in rows if row.cells[0].reason),
        *(
            f"{name}: no verdict, because {describe_problems(each)}."
            for name, each in judgements.items()
            if not each.paired.is_sound
        ),
        describe_selection(selection, metric),
    )
    return Table(f"Compared to {baseline}", selection, columns, rows, notes, metric.name)


def describe_verdicts(judgements: Sequence[Judgement]) -> list[str]:
    """Return what intervals and verdicts of claims that were judged together mean."""
    level, margin = judgements[0].level, judgements[0].margin
    confidence, joint = (f"{100 * (1 - each):.3g} %" for each in (level, LEVEL))
    shared = f", so that all {len(judgements)} verdicts together are right with {joint} confidence (Holm)"
    return [
        f"Differences are in points, with {confidence} confidence intervals over trials"
        f"{shared if len(judgements) > 1 else ''}. No practical difference: the interval is within ± {margin:g}.",
        "Trials needed: in total, to decide with a probability of 80 % if the observed mean is the true one, for both "
        f"ends of an 80 % interval of the spread; with fewer than {MIN_PILOT} trials, for the lower end.",
    ]


def describe_problems(judgement: Judgement) -> str:
    """Return which runs of a comparison collapsed or failed, and in how many trials."""
    problems, rate = judgement.paired.problems, judgement.paired.collapse_rate
    more = f"; {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
    return f"runs are at chance level or failed in {rate} trials: {'; '.join(problems[:_MAX_PROBLEMS])}{more}"


def _build_cells(judgement: Judgement, baseline: str, sign: float, has_collapsed: bool) -> tuple[Cell, ...]:
    collapsed = [Cell(None, text=judgement.paired.collapse_rate)] if has_collapsed else []
    if judgement.estimate is None:
        missing = Cell(None, reason=f"no trial with the same test domains as {baseline}")
        return (missing, *collapsed, *(missing,) * 4)
    interval = judgement.interval
    if interval is not None and sign < 0:
        interval = (-interval[1], -interval[0])
    return (
        Cell(sign * judgement.estimate + 0.0, trials=judgement.trials, interval=interval),
        *collapsed,
        Cell(float(judgement.trials)),
        Cell(float(judgement.wins)),
        Cell(None, text=judgement.verdict),
        _build_needed_cell(judgement),
    )


def _build_needed_cell(judgement: Judgement) -> Cell:
    if judgement.trials_needed is not None:
        return Cell(None, text=str(judgement.trials_needed))
    if judgement.verdict != "inconclusive":
        return Cell(None, reason="decided")
    if not judgement.paired.is_sound:
        return Cell(None, reason="runs collapsed or failed")
    return Cell(None, reason="the spread between trials is unknown with a single one")
