"""Model selection: from all records to the ones that a fair comparison may report.

Each rule is a pure function of the frame that `build_frame` builds. It returns one row per (dataset, algorithm, test
domain, trial): the `draw` of the hyperparameters and the `step` it chose by which `score`, its `accuracy` on the test
domain's main part and on the `training` domains' holdouts, whether it `is_collapsed` there, and from how many `draws`
it was chosen. Ties go to the larger draw and, within a run, to the earlier step: DomainBed's rule. In the frame of
another metric, all of these are of that metric; `select_models` also knows which way is better.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import polars as pl

from domainwise.selection.metrics import ACCURACY, Metric

CELL = ("dataset", "algorithm", "test_domain", "trial")
_RUN = (*CELL, "draw", "run")


def training_domain(frame: pl.DataFrame) -> pl.DataFrame:
    """Highest mean accuracy on the training domains' holdouts, at any step."""
    return _choose_best(frame.filter("is_result").with_columns(score="training"))


def one_standard_error(frame: pl.DataFrame) -> pl.DataFrame:
    """Largest radius whose mean accuracy on the training domains' holdouts is within one standard error of the best.

    The rule of Breiman et al. (1984), models ordered by `epsilon`: where `training_domain` gives up a larger radius for
    a difference that the holdouts are too small to show, this one keeps it. The standard error is that of the best
    record, see `domainwise.selection.score.training_error`. Of equal radii the higher accuracy counts, so methods
    without a radius are selected as by `training_domain`. A radius competes only with others in its unit, and from the
    step on at which its warm-up is over: before, the network has not seen it.
    """
    scored = _rank(frame.filter("is_result", ~pl.col("is_warmup")).with_columns(score="training"))
    best = {name: pl.col(name).first().over(CELL) for name in ("score", "training_error", "epsilon_unit")}
    # Exactly one standard error away counts as within, however the last bit is rounded.
    is_close = pl.col("score") >= best["score"] - best["training_error"].fill_null(0.0) - 1e-9
    is_comparable = pl.col("epsilon_unit").eq_missing(best["epsilon_unit"])
    radius = pl.when(is_close & is_comparable).then(pl.col("epsilon").fill_null(0.0))
    return _choose_best(scored.with_columns(radius=radius), order=("radius", "score"))


def attacked_holdout(frame: pl.DataFrame) -> pl.DataFrame:
    """Highest mean accuracy on the training domains' holdouts under a domain-wise attack of the network, at any step.

    Needs runs with the setting `attack_radius`.
    """
    return _choose_best(frame.filter("is_result").with_columns(score="attacked"))


def leave_one_out(frame: pl.DataFrame) -> pl.DataFrame:
    """Highest mean accuracy on each other domain, in the run of the same draw that leaves that domain out as well.

    Only steps count at which the run and all those that leave out one more domain have a record.
    """
    helpers = frame.filter(~pl.col("is_result"), pl.col("test_domains").list.len() == 2, pl.col("main").is_not_null())
    # The helper that leaves out (a, b) serves target a by its accuracy on b, and the other way round.
    targets = helpers.with_columns(
        target=pl.when(pl.col("test_domains").list.get(0) == pl.col("test_domain"))
        .then(pl.col("test_domains").list.get(1))
        .otherwise(pl.col("test_domains").list.get(0))
    )
    scores = (
        targets.sort("position")
        .group_by("dataset", "algorithm", "target", "trial", "draw", "step", maintain_order=True)
        .agg(others="main", helpers=pl.col("test_domain").n_unique())
        .rename({"target": "test_domain"})
    )
    # Summed by numpy as DomainBed does: polars rounds differently, and ties there would not be ties here.
    means = [float(np.sum(others) / len(others)) for others in scores["others"].to_list()]
    scores = scores.with_columns(score=pl.Series(means, dtype=pl.Float64))
    results = frame.filter(pl.col("test_domains").list.len() == 1, "is_result")
    scored = results.join(scores, on=[*CELL, "draw", "step"], how="inner")
    return _choose_best(scored.filter(pl.col("helpers") == pl.col("num_domains") - 1))


def test_domain(frame: pl.DataFrame) -> pl.DataFrame:
    """Highest accuracy on the test domain's own holdout, after the last step: an oracle, not a fair choice."""
    last = frame.filter("is_result").filter(pl.col("step") == pl.col("step").max().over(_RUN))
    return _choose_best(last.with_columns(score="holdout"))


def ood_validation(frame: pl.DataFrame) -> pl.DataFrame:
    """Highest accuracy on a validation domain that is neither trained nor tested on, at any step."""
    return _choose_best(frame.filter("is_result").with_columns(score="validation"))


SELECTIONS: Mapping[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
    "training_domain": training_domain,
    "one_standard_error": one_standard_error,
    "attacked_holdout": attacked_holdout,
    "leave_one_out": leave_one_out,
    "test_domain": test_domain,
    "ood_validation": ood_validation,
}


def select_models(frame: pl.DataFrame, selection: str, metric: Metric = ACCURACY) -> pl.DataFrame:
    """Apply a rule to the frame of any metric; where lower is better, to its negative."""
    if not metric.is_lower_better:
        return SELECTIONS[selection](frame)
    negated = frame.with_columns(-pl.col("training", "attacked", "validation", "main", "holdout"))
    return SELECTIONS[selection](negated).with_columns(-pl.col("score", "accuracy", "training"))


def _rank(scored: pl.DataFrame, order: Sequence[str] = ("score",)) -> pl.DataFrame:
    """Return the records that can be chosen, the best first."""
    descending = [*(True for _ in order), True, False]
    return scored.drop_nulls(["score", "main"]).sort(*order, "draw", "step", descending=descending, nulls_last=True)


def _choose_best(scored: pl.DataFrame, order: Sequence[str] = ("score",)) -> pl.DataFrame:
    return (
        _rank(scored, order)
        .group_by(CELL, maintain_order=True)
        .agg(
            pl.col("position", "draw", "step", "score", "run").first(),
            accuracy=pl.col("main").first(),
            training=pl.col("training").first(),
            is_collapsed=pl.col("is_collapsed").first(),
            draws=pl.col("draw").n_unique(),
        )
        .sort("dataset", "algorithm", "position", "trial")
    )
