"""From all records to the ones a fair comparison may report: four ways, each a pure function of the frame.

Each returns a row a (dataset, algorithm, test domain, trial): which `draw` of the hyperparameters and which `step` was
chosen by which `score`, its `accuracy` on the test domain's main part and on the `training` domains' holdouts, and from
how many `draws` it was chosen. Of draws with one score the largest wins, within a run the earliest step: DomainBed's
rule.
"""

from collections.abc import Callable, Mapping

import numpy as np
import polars as pl

CELL = ("dataset", "algorithm", "test_domain", "trial")
_RUN = (*CELL, "draw", "run")


def training_domain(frame: pl.DataFrame) -> pl.DataFrame:
    """The highest mean accuracy on the training domains' holdouts, at any step."""
    return _best(_results(frame).with_columns(score="training"))


def leave_one_out(frame: pl.DataFrame) -> pl.DataFrame:
    """The highest mean accuracy on each other domain, of the run of the same draw that leaves that one out as well.

    Only steps count at which the run and all of those that leave out one more domain have a record.
    """
    helpers = frame.filter(~pl.col("is_result"), pl.col("test_domains").list.len() == 2, pl.col("main").is_not_null())
    # The helper that leaves out (a, b) serves target a by its accuracy on b, and the other way round.
    served = helpers.with_columns(
        target=pl.when(pl.col("test_domains").list.get(0) == pl.col("test_domain"))
        .then(pl.col("test_domains").list.get(1))
        .otherwise(pl.col("test_domains").list.get(0))
    )
    scores = (
        served.sort("position")
        .group_by("dataset", "algorithm", "target", "trial", "draw", "step", maintain_order=True)
        .agg(others="main", helpers=pl.col("test_domain").n_unique())
        .rename({"target": "test_domain"})
    )
    # Added up by numpy as DomainBed does: polars rounds in another way, and what ties there would not tie here.
    means = [float(np.sum(others) / len(others)) for others in scores["others"].to_list()]
    scores = scores.with_columns(score=pl.Series(means, dtype=pl.Float64))
    alone = frame.filter(pl.col("test_domains").list.len() == 1, "is_result")
    joined = alone.join(scores, on=[*CELL, "draw", "step"], how="inner")
    return _best(joined.filter(pl.col("helpers") == pl.col("num_domains") - 1))


def test_domain(frame: pl.DataFrame) -> pl.DataFrame:
    """The highest accuracy on the test domain's own holdout, after the last step: an oracle, not a fair choice."""
    last = _results(frame).filter(pl.col("step") == pl.col("step").max().over(_RUN))
    return _best(last.with_columns(score="holdout"))


def ood_validation(frame: pl.DataFrame) -> pl.DataFrame:
    """The highest accuracy on a validation domain that is neither trained nor tested on, at any step."""
    return _best(_results(frame).with_columns(score="validation"))


SELECTIONS: Mapping[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
    "training_domain": training_domain,
    "leave_one_out": leave_one_out,
    "test_domain": test_domain,
    "ood_validation": ood_validation,
}


def _results(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.filter("is_result")


def _best(scored: pl.DataFrame) -> pl.DataFrame:
    return (
        scored.drop_nulls(["score", "main"])
        .sort("score", "draw", "step", descending=[True, True, False])
        .group_by(CELL, maintain_order=True)
        .agg(
            pl.col("position", "draw", "step", "score", "run").first(),
            accuracy=pl.col("main").first(),
            training=pl.col("training").first(),
            draws=pl.col("draw").n_unique(),
        )
        .sort("dataset", "algorithm", "position", "trial")
    )
