"""Paired comparison of every method with one of them: is it better, or was it luck?"""

from collections.abc import Sequence

import polars as pl

from domainwise.errors import unknown_choice
from domainwise.reports.cells import Cell, Column, Row, Table
from domainwise.reports.footnotes import describe_selection
from domainwise.selection.metrics import ACCURACY, Metric
from domainwise.selection.statistics import average_differences
from domainwise.selection.verdicts import LEVEL, MARGIN, MAX_TRIALS, Judgement, judge_differences


def build_comparison(
    selected: pl.DataFrame,
    selection: str,
    algorithms: Sequence[str],
    baseline: str,
    margin: float = MARGIN,
    *,
    is_sequential: bool = False,
    metric: Metric = ACCURACY,
) -> Table:
    """Judge for every method whether it is above `baseline`, by the trials that both have; see `judge_differences`.

    Of a metric that should be low, the claim is that the method is below `baseline`.
    """
    if baseline not in algorithms:
        raise unknown_choice("method to compare to", baseline, algorithms)
    columns = (
        Column(f"difference to {baseline}", "difference"),
        Column("trials", "trials"),
        Column("wins", "wins"),
        Column("verdict", "verdict"),
        Column("trials needed", "trials_needed"),
    )
    reference = selected.filter(pl.col("algorithm") == baseline)
    # How much better a method is.
    sign = -1.0 if metric.is_lower_better else 1.0
    differences = {
        algorithm: [
            sign * each for each in average_differences(selected.filter(pl.col("algorithm") == algorithm), reference)
        ]
        for algorithm in algorithms
        if algorithm != baseline
    }
    judgements = judge_differences(differences, margin=margin, is_sequential=is_sequential)
    rows = tuple(Row(algorithm, _build_cells(each, baseline, sign)) for algorithm, each in judgements.items())
    notes = (
        *(describe_verdicts(list(judgements.values())) if rows else ["There is no other method."]),
        *(["Trials were added until claims were decided, which the intervals allow for."] if is_sequential else []),
        "The difference of a trial is the mean over the test domains, then over the datasets, that the method and "
        f"{baseline} both have; only trials with all of them count. wins: trials in which the method is better.",
        f"Verdicts are on the claim that the method is {'below' if metric.is_lower_better else 'above'} {baseline}"
        f"{f': a lower {metric.title} is better' if metric.is_lower_better else ''}.",
        *(f"{row.algorithm}: {row.cells[0].reason}." for row in rows if row.cells[0].reason),
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
        "Trials needed: in total, to decide with a probability of 80 % if the observed mean and spread are the true "
        "ones.",
    ]


def _build_cells(judgement: Judgement, baseline: str, sign: float) -> tuple[Cell, ...]:
    if judgement.estimate is None:
        return (Cell(None, reason=f"no trial with the same test domains as {baseline}"),) * 5
    interval = judgement.interval
    if interval is not None and sign < 0:
        interval = (-interval[1], -interval[0])
    return (
        Cell(sign * judgement.estimate + 0.0, trials=judgement.trials, interval=interval),
        Cell(float(judgement.trials)),
        Cell(float(judgement.wins)),
        Cell(None, text=judgement.verdict),
        _build_needed_cell(judgement),
    )


def _build_needed_cell(judgement: Judgement) -> Cell:
    if judgement.trials_needed is not None:
        return Cell(float(judgement.trials_needed))
    if judgement.verdict != "inconclusive":
        return Cell(None, reason="decided")
    if judgement.trials < 2:
        return Cell(None, reason="the spread between trials is unknown with a single one")
    return Cell(None, text=f"> {MAX_TRIALS}")
