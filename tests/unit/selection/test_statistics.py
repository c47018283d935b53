"""Means, standard errors and paired comparisons: by hand, and the permutation test against all sign patterns."""

import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domainwise.selection.statistics import (
    MAX_EXACT_PAIRS,
    NUM_RESAMPLES,
    aggregate_means,
    compare_pairs,
    estimate_mean,
    sign_flip_test,
    smallest_p_value,
)


# Like accuracies on a few thousand images, so that ties and sums that cancel do occur. The first call imports scipy.
@settings(deadline=None)
@given(st.lists(st.integers(-40, 40), min_size=1, max_size=9))
def test_p_value_is_the_share_of_sign_patterns_as_extreme_as_observed(counts: list[int]) -> None:
    sums = [abs(sum(s * c for s, c in zip(signs, counts, strict=True))) for signs in sign_patterns(len(counts))]
    expected = sum(one >= abs(sum(counts)) for one in sums) / len(sums)
    assert sign_flip_test(np.array(counts) / 30 * 0.7) == pytest.approx(expected, abs=1e-12)


@settings(deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=1, max_size=10))
def test_p_value_is_a_two_sided_probability(values: list[float]) -> None:
    differences = np.array(values)
    p = sign_flip_test(differences)
    assert smallest_p_value(len(values)) <= p <= 1
    assert sign_flip_test(-differences) == p


def sign_patterns(count: int) -> list[tuple[int, ...]]:
    return list(itertools.product((1, -1), repeat=count))


def test_equal_differences_give_the_smallest_p_value() -> None:
    # Tenths do not add up exactly, yet all of them flipped must count as equally extreme.
    for pairs in (1, 2, 5, MAX_EXACT_PAIRS):
        assert sign_flip_test(np.full(pairs, 0.1)) == smallest_p_value(pairs) == 2 ** (1 - pairs)
    assert sign_flip_test(np.zeros(4)) == 1.0


def test_many_pairs_use_seeded_random_sign_patterns() -> None:
    generator = np.random.default_rng(5)
    differences = generator.normal(0.5, 1.0, size=MAX_EXACT_PAIRS + 1)
    exact = np.abs(np.array(sign_patterns(MAX_EXACT_PAIRS + 1)) @ differences) >= abs(differences.sum()) - 1e-9
    p = sign_flip_test(differences)
    assert 0.001 < exact.mean() < 0.9
    assert p == pytest.approx(exact.mean(), abs=4 * (exact.mean() / NUM_RESAMPLES) ** 0.5)
    assert sign_flip_test(differences) == p
    assert sign_flip_test(np.full(60, 1.0)) == smallest_p_value(60) == 2 / (NUM_RESAMPLES + 1)


def test_comparison_by_hand() -> None:
    # Of the eight sign patterns of 1, 2 and -1, those with |sum| >= 2: +1+2-1, +1+2+1, -1+2+1 and their mirror images.
    comparison = compare_pairs(np.array([1.0, 2.0, -1.0]))
    assert comparison.difference == pytest.approx(2 / 3)
    assert comparison.error == pytest.approx((14 / 9) ** 0.5 / 3**0.5)
    assert (comparison.pairs, comparison.wins, comparison.p_value) == (3, 2, 0.75)
    assert compare_pairs(np.array([0.0])).error is None
    assert compare_pairs(np.array([0.0])).wins == 0


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


def test_a_sum_that_cancels_except_for_its_last_bits_counts_as_zero() -> None:
    differences = np.array([-1, 0, 4, -6, -4, 5, -4, 6]) / 30 * 0.7
    assert sign_flip_test(differences) == 1.0
