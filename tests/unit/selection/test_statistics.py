"""Means, standard errors and differences per trial, by hand."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domainwise.selection.statistics import aggregate_means, estimate_mean, pair_trials
from domainwise.selection.verdicts import PairedTrials
from domainwise.storage.sweep_folder import PlannedRun


def test_standard_error_is_that_of_a_sample() -> None:
    estimate = estimate_mean([60.0, 70.0, 80.0])
    assert estimate.mean == pytest.approx(70.0)
    # The standard deviation 10 (ddof 1) over the root of three.
    assert estimate.error == pytest.approx(5.773503)
    # Half the difference of two trials.
    assert estimate_mean([7.5, 10.3]).error == pytest.approx(1.4)
    assert estimate.count == 3
    assert estimate_mean([60.0]).error is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_aggregated_means_are_those_of_each_group(values: list[float]) -> None:
    frame = pl.DataFrame({"method": ["a"] * len(values) + ["b"], "accuracy": [*values, 0.5]})
    first, second = aggregate_means(frame, ["method"]).iter_rows(named=True)
    estimate = estimate_mean(values)
    assert first["mean"] == pytest.approx(estimate.mean)
    assert first["error"] == (None if estimate.error is None else pytest.approx(estimate.error, abs=1e-9))
    assert (first["count"], second["count"], second["error"]) == (len(values), 1, None)


def models(*rows: tuple[str, str, int, float]) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema=["dataset", "test_domain", "trial", "accuracy"], orient="row")
    return frame.with_columns(algorithm=pl.lit("mat"), is_collapsed=pl.lit(False))


def test_the_difference_of_a_trial_is_the_mean_over_test_domains_then_datasets() -> None:
    worse = models(
        *(("pacs", domain, trial, 0.5) for trial in (1, 0) for domain in ("art", "photo", "sketch")),
        ("nico", "test", 0, 0.5),
        ("nico", "test", 1, 0.7),
    )
    better = models(
        ("pacs", "art", 0, 0.54),
        ("pacs", "photo", 0, 0.52),
        ("nico", "test", 0, 0.56),
        ("pacs", "photo", 1, 0.5),
        ("pacs", "art", 1, 0.52),
        ("nico", "test", 1, 0.7),
    )
    # 3 points on pacs and 6 on nico, then 1 and 0; sketch is not in common.
    assert pair_trials(better, worse).differences == pytest.approx([4.5, 0.5])


def test_a_trial_without_all_test_domains_does_not_count() -> None:
    worse = models(*(("pacs", domain, trial, 0.5) for trial in range(3) for domain in ("art", "photo")))
    better = worse.with_columns(pl.col("accuracy") + 0.01).filter(
        (pl.col("trial") != 1) | (pl.col("test_domain") == "art")
    )
    assert pair_trials(better, worse).differences == pytest.approx([1.0, 1.0])
    assert pair_trials(better.filter(trial=9), worse) == PairedTrials([])


def test_collapsed_and_failed_runs_are_counted_by_trial_and_named() -> None:
    worse = models(*(("pacs", domain, trial, 0.5) for trial in range(4) for domain in ("art", "photo")))
    is_bad = (pl.col("trial") == 1) | ((pl.col("trial") == 2) & (pl.col("test_domain") == "art"))
    better = worse.with_columns(pl.col("accuracy") + 0.01, is_collapsed=is_bad).filter(pl.col("trial") < 3)
    failed = PlannedRun(Path("run"), "run", "pacs", "mat", ("photo",), 3, 0)
    paired = pair_trials(better, worse, {failed: "the loss is nan"})
    assert paired.differences == pytest.approx([1.0] * 3)
    assert (paired.collapsed, paired.failed, paired.collapse_rate) == (2, 1, "3 of 4")
    assert paired.problems == (
        *(f"mat on {place} is at chance level" for place in ("art in trial 1", "photo in trial 1", "art in trial 2")),
        "mat on photo in trial 3 failed (the loss is nan)",
    )
    # What is not compared does not count.
    assert pair_trials(better, worse.filter(pl.col("trial") == 0)).is_sound
