"""Means with their standard errors, and paired comparisons: the only implementation, for tables, pages and verdicts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

MAX_EXACT_PAIRS = 16
NUM_RESAMPLES = 99_999


@dataclass(frozen=True)
class Estimate:
    """A mean over repetitions, and its standard error; None for a single one."""

    mean: float
    error: float | None
    count: int


@dataclass(frozen=True)
class PairedComparison:
    """The mean difference between two methods over pairs.

    Args:
        wins: number of pairs in which the difference is above zero.
        p_value: two-sided, of the sign-flip permutation test.
    """

    difference: float
    error: float | None
    pairs: int
    wins: int
    p_value: float


def estimate_mean(values: Iterable[float]) -> Estimate:
    """Return the mean of at least one value with its standard error as DomainBed defines it (ddof 0)."""
    array = np.asarray(list(values), dtype=np.float64)
    error = float(array.std() / np.sqrt(len(array))) if len(array) > 1 else None
    return Estimate(float(array.mean()), error, len(array))


def format_percent(mean: float, error: float | None) -> str:
    """Format a mean of fractions and its standard error in percent, such as `62.1 ± 0.8`."""
    return f"{100 * mean:.1f}" if error is None else f"{100 * mean:.1f} ± {100 * error:.1f}"


def aggregate_means(frame: pl.DataFrame, by: Sequence[str], value: str = "accuracy") -> pl.DataFrame:
    """Return `mean`, standard `error` (null for a single row) and `count` of a column per group, as `estimate_mean`."""
    error = pl.when(pl.len() > 1).then(pl.col(value).std(ddof=0) / pl.len().sqrt())
    return frame.group_by(by, maintain_order=True).agg(
        mean=pl.col(value).mean(), error=error, count=pl.len().cast(pl.Int64)
    )


def compare_pairs(differences: Sequence[float] | NDArray[np.float64]) -> PairedComparison:
    """Compare two methods by one difference per pair, at least one."""
    array = np.asarray(differences, dtype=np.float64)
    estimate = estimate_mean(array)
    return PairedComparison(
        estimate.mean, estimate.error, estimate.count, int((array > 0).sum()), sign_flip_test(array)
    )


def sign_flip_test(differences: NDArray[np.float64]) -> float:
    """Return the two-sided p-value of the mean difference if each difference could equally have had the other sign.

    All sign patterns are tried up to `MAX_EXACT_PAIRS` pairs, beyond that `NUM_RESAMPLES` seeded random ones.
    """
    # Imported here: scipy.stats takes longer than a report without a test.
    from scipy.stats import monte_carlo_test, permutation_test

    if len(differences) == 1:  # scipy wants two; both signs of one pair are equally extreme
        return 1.0
    scaled = differences / (np.abs(differences).max() or 1.0)
    generator = np.random.default_rng(0)

    def sum_rounded(values: NDArray[np.float64], axis: int) -> Any:
        # Sums of the same numbers in another order differ in their last bits, and must still count as equal.
        return np.round(values.sum(axis=axis), 9)

    def flip_signs(size: tuple[int, ...]) -> NDArray[np.float64]:
        return scaled * (1 - 2 * generator.integers(0, 2, size, dtype=np.int8))

    if len(scaled) <= MAX_EXACT_PAIRS:
        exact = permutation_test(
            (scaled,),
            sum_rounded,
            permutation_type="samples",
            vectorized=True,
            n_resamples=2**MAX_EXACT_PAIRS,
            batch=10_000,
        )
        return float(exact.pvalue)
    # Draws all sign patterns of a batch at once, which permutation_test does pair by pair.
    sampled = monte_carlo_test(
        scaled, flip_signs, sum_rounded, vectorized=True, n_resamples=NUM_RESAMPLES, batch=10_000
    )
    return float(sampled.pvalue)


def smallest_p_value(pairs: int) -> float:
    """Return the p-value if all pairs have the same sign, the smallest that the test can give."""
    return 2.0 ** (1 - pairs) if pairs <= MAX_EXACT_PAIRS else 2 / (NUM_RESAMPLES + 1)
