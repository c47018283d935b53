"""Means, standard errors and differences per trial, by hand."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domainwise.selection.statistics import aggregate_means, average_differences, estimate_mean


def test_standard_error_is_domainbeds() -> None:
    estimate = estimate_mean([60.0, 70.0, 80.0])
    assert estimate.mean == pytest.approx(70.0)
    # The standard deviation 8.1650 (ddof 0) over the root of three.
    assert estimate.error == pytest.approx(4.714045)
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
    return pl.DataFrame(rows, schema=["dataset", "test_domain", "trial", "accuracy"], orient="row")


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
    assert average_differences(better, worse) == pytest.approx([4.5, 0.5])


def test_a_trial_without_all_test_domains_does_not_count() -> None:
    worse = models(*(("pacs", domain, trial, 0.5) for trial in range(3) for domain in ("art", "photo")))
    better = worse.with_columns(pl.col("accuracy") + 0.01).filter(
        (pl.col("trial") != 1) | (pl.col("test_domain") == "art")
    )
    assert average_differences(better, worse) == pytest.approx([1.0, 1.0])
    assert average_differences(better.filter(trial=9), worse) == []
