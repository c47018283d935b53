"""Verdicts on paired comparisons: the only implementation, for tables, pages and claims."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from domainwise.errors import DomainwiseError

Verdict = Literal["holds", "does not hold", "no practical difference", "inconclusive"]
MARGIN = 1.0
LEVEL = 0.05
POWER = 0.8
# More trials than that are not counted.
MAX_TRIALS = 1000
# With fewer trials, the spread is too uncertain for an upper end of the number of trials needed.
MIN_PILOT = 5
# Error level of the interval of the spread that this number is estimated from.
_PILOT_LEVEL = 0.2
# All accuracies in points are in a range of this width, so a wider interval says nothing.
MAX_WIDTH = 100.0
# c^2 of the sequential test, which expects effect sizes of about 1 / c. Close to the most powerful value for effects of
# .5 to 2 and at most 20 trials (`benchmarks/sequential_test.py`).
PRIOR_PRECISION = 0.5
# Decimals of points. Accuracies are multiples of 1 / images, so anything smaller is a rounding error.
_DECIMALS = 9
_NUM_QUANTILES = 50


@dataclass(frozen=True)
class TrialsNeeded:
    """The number of trials, in total, that decides a claim: a range, as the spread between trials is estimated.

    Args:
        low, high: for the ends of an 80 % interval of the spread; None beyond `MAX_TRIALS`. `high` is also None with
            fewer than `MIN_PILOT` trials.
    """

    low: int | None
    high: int | None

    def __str__(self) -> str:
        if self.low is None:
            return f"more than {MAX_TRIALS}"
        if self.high is None:
            return f"at least {self.low}"
        return f"{self.low}" if self.low == self.high else f"{self.low} to {self.high}"


@dataclass(frozen=True)
class PairedTrials:
    """The trials that two methods have in common.

    Args:
        differences: A - B in points, one per trial.
        collapsed: number of these trials in which a run is at chance level, or failed.
        failed: number of further trials, which have no difference because a run failed.
        problems: the runs that collapsed or failed, one line each.
    """

    differences: Sequence[float]
    collapsed: int = 0
    failed: int = 0
    problems: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether no run collapsed or failed."""
        return self.collapsed == self.failed == 0

    @property
    def collapse_rate(self) -> str:
        """In how many of the trials a run collapsed or failed, such as `2 of 10`."""
        return f"{self.collapsed + self.failed} of {len(self.differences) + self.failed}"


@dataclass(frozen=True)
class Judgement:
    """What the trials say about one claim "A is above B".

    Args:
        estimate: mean difference A - B in points; None without trials.
        interval: confidence interval of the mean difference; None if there are too few trials for one, or for one that
            is narrower than all accuracies.
        level: error level of the interval, after sharing it between all claims.
        margin: largest difference without practical importance, in points.
        wins: number of trials in which A is above B.
        trials_needed: for an inconclusive claim, the number of trials in total that decide it with a probability of
            80 % if the observed mean is the true one; None for fewer than 2 trials, and if runs collapsed or failed.
        paired: what was judged. If runs collapsed or failed, the verdict is "inconclusive": the interval is not valid,
            and trials that failed are missing for a reason.
    """

    estimate: float | None
    interval: tuple[float, float] | None
    level: float
    margin: float
    trials: int
    wins: int
    verdict: Verdict
    trials_needed: TrialsNeeded | None
    paired: PairedTrials

    def format_interval(self) -> str:
        """Return `-0.3 to +1.2`, or `too few trials`; empty without a trial."""
        if self.interval is None:
            return "too few trials" if self.trials else ""
        return "{:+z.1f} to {:+z.1f}".format(*self.interval)

    @property
    def is_open(self) -> bool:
        """Whether more trials may change what is known: the interval decides nothing so far.

        A single trial that failed does not close a claim, but it is closed if most of several did.
        """
        has_failed = self.paired.failed > max(1, self.trials)
        return not has_failed and decide_verdict(self.interval, self.margin) == "inconclusive"


def judge_differences(
    by_claim: Mapping[str, Sequence[float] | PairedTrials],
    *,
    margin: float = MARGIN,
    level: float = LEVEL,
    is_sequential: bool = False,
) -> dict[str, Judgement]:
    """Judge several claims together, by one difference per trial and claim.

    With a probability of at least 1 - level no verdict is wrong: neither a sign nor "no practical difference",
    whatever the dependence between the claims. Levels are shared as Holm does it for the 2m hypotheses "difference at
    most 0" and "at least 0": all intervals have the level of `share_level`, which grows with the number of intervals
    that exclude 0, until no more of them do.

    Proof: the verdict on a positive (negative) difference can be wrong only if the upper (lower) end of its interval is
    on the wrong side of it; if the difference is 0, either end. Let P differences be other than 0. With intervals at
    `share_level(level, m, P)`, the probability that any of these ends is on the wrong side is at most `level`. If none
    is, at most P intervals at this or a lower level exclude 0, so no interval ever gets a higher level.

    Args:
        by_claim: differences A - B in points, one per trial, maybe none; with the runs that collapsed or failed, if
            they are known. Include every claim that is going to be judged, also those without trials so far.
        margin: largest difference without practical importance, in points.
        level: probability of any wrong verdict.
        is_sequential: whether results are looked at, and trials added, until claims are decided. Without, the number
            of trials must not depend on the results.
    """
    check_margin(margin)
    if not 0 < level < 1:
        raise DomainwiseError(f"level must be between 0 and 1, got {level:g}")
    paired = {claim: each if isinstance(each, PairedTrials) else PairedTrials(each) for claim, each in by_claim.items()}
    samples = {claim: _to_array(each.differences) for claim, each in paired.items()}
    count = -1
    intervals: dict[str, tuple[float, float] | None] = {}
    while count != (signed := sum(_has_sign(paired[claim], interval) for claim, interval in intervals.items())):
        count = signed
        shared = share_level(level, len(samples), signed, is_sequential=is_sequential)
        intervals = {
            claim: estimate_interval(values, shared, is_sequential=is_sequential) for claim, values in samples.items()
        }
    return {claim: _judge(each, intervals[claim], margin, shared, is_sequential) for claim, each in paired.items()}


def check_margin(margin: float) -> None:
    """Raise an error for a margin below 0."""
    if not margin >= 0:
        raise DomainwiseError(f"margin must be at least 0 points, got {margin:g}")


def share_level(level: float, claims: int, signed: int, *, is_sequential: bool = False) -> float:
    """Return the level of each interval if `signed` of the claims have an interval that excludes 0.

    The error of a claim whose difference is not 0 is one-sided. It has half the level of the interval; in a sequential
    test slightly more, at most level / (2 - level), because both ends may be wrong at different looks.
    """
    saved = (1 - level) / (2 - level) if is_sequential else 0.5
    return min(level, level / (claims - saved * signed)) if claims else level


def estimate_interval(
    differences: Sequence[float] | NDArray[np.float64], level: float = LEVEL, *, is_sequential: bool = False
) -> tuple[float, float] | None:
    """Return the confidence interval of the mean difference, or None if it is unbounded or wider than 100 points.

    If all differences are equal, the interval is a point, but only from the number of trials on at which a sign test
    would be significant, 2^(1 - trials) <= level: a spread of 0 over few trials says little where accuracies are
    multiples of 1 / images.
    """
    values = _to_array(differences)
    if len(values) < 2:
        return None
    mean, spread = _summarize(values)
    factor = float(compute_width_factors(len(values), level, is_sequential=is_sequential))
    if not np.isfinite(factor) or (spread == 0 and not _is_sign_test_significant(len(values), level)):
        return None
    if 2 * factor * spread > MAX_WIDTH:
        return None
    return mean - factor * spread, mean + factor * spread


def compute_width_factors(
    trials: ArrayLike, level: float, *, is_sequential: bool = False, precision: float = PRIOR_PRECISION
) -> NDArray[np.float64]:
    """Return half the width of the interval in units of the standard deviation (ddof 1), for at least 2 trials.

    With a fixed number of trials it is Student's t interval. The sequential interval is valid at all numbers of trials
    at once: it contains every mean that the e-process of the right-Haar mixture t-test, with an effect size from
    N(0, 1 / c^2), does not reject,

        E = sqrt(a) * ((1 + T^2 / (n - 1)) / (1 + a * T^2 / (n - 1)))^(n / 2) < 1 / level,  a = c^2 / (n + c^2),

    with Student's T of n trials. It is infinite as long as no T could be large enough. Under the true mean, E exceeds
    1 / level at any n with a probability of at most `level` (Ville). Lai (1976); Perez-Ortiz, Lardy, de Heide and
    Gruenwald, "E-statistics, group invariance and anytime-valid testing" (2024); Wang and Ramdas, "Anytime-valid
    t-tests and confidence sequences for Gaussian means with unknown variance" (2024).

    Args:
        precision: c^2.
    """
    # Imported here: scipy takes longer than a report without a comparison.
    from scipy.special import stdtrit

    n = np.asarray(trials, dtype=np.float64)
    if not is_sequential:
        return np.asarray(stdtrit(n - 1, 1 - level / 2) / np.sqrt(n))
    a = precision / (n + precision)
    # E < 1 / level if and only if (1 + u) / (1 + a u) < k, with u = T^2 / (n - 1).
    k = (level * np.sqrt(a)) ** (-2 / n)
    is_bounded = a * k < 1
    u = (k - 1) / np.where(is_bounded, 1 - a * k, 1.0)
    return np.where(is_bounded, np.sqrt(u * (n - 1) / n), np.inf)


def decide_verdict(interval: tuple[float, float] | None, margin: float = MARGIN) -> Verdict:
    """Return what an interval of the difference says."""
    if interval is None:
        return "inconclusive"
    low, high = interval
    if -margin < low and high < margin:
        return "no practical difference"
    if low > 0:
        return "holds"
    return "does not hold" if high < 0 else "inconclusive"


def count_trials_needed(
    mean: float,
    spread: float,
    *,
    above: int = 1,
    margin: float = MARGIN,
    level: float = LEVEL,
    is_sequential: bool = False,
) -> int | None:
    """Return the number of trials whose interval decides with a probability of 80 %; None beyond `MAX_TRIALS`.

    Of a sequential test only the look after the last trial counts, so it may well decide earlier.

    Args:
        mean, spread: the true mean and standard deviation of the difference.
        above: the number of trials that there are.
    """

    def measure_power(trials: int) -> float:
        return _measure_power(mean, spread, trials, margin, level, is_sequential)

    candidates = range(above + 1, MAX_TRIALS + 1)
    index = bisect_left(candidates, POWER, key=measure_power)
    return candidates[index] if index < len(candidates) else None


def _measure_power(mean: float, spread: float, trials: int, margin: float, level: float, is_sequential: bool) -> float:
    """Return the probability that the interval of this many trials decides, for a true mean and spread."""
    from scipy.special import gammaincinv, ndtr

    factor = float(compute_width_factors(trials, level, is_sequential=is_sequential))
    if spread == 0:
        is_point = np.isfinite(factor) and _is_sign_test_significant(trials, level)
        return float(is_point and decide_verdict((mean, mean), margin) != "inconclusive")
    # The observed standard deviation of that many trials, as quantiles of its distribution.
    quantiles = (np.arange(_NUM_QUANTILES) + 0.5) / _NUM_QUANTILES
    widths = factor * spread * np.sqrt(2 * gammaincinv((trials - 1) / 2, quantiles) / (trials - 1))
    error = spread / trials**0.5

    def is_within(size: NDArray[np.float64]) -> Any:
        return ndtr((size - mean) / error) - ndtr((-size - mean) / error)

    # Inconclusive: the interval contains 0, so the mean is within the width, but not within margin - width.
    return float(np.mean(1 - is_within(widths) + is_within(np.clip(margin - widths, 0, widths))))


def _judge(
    paired: PairedTrials,
    interval: tuple[float, float] | None,
    margin: float,
    level: float,
    is_sequential: bool,
) -> Judgement:
    values = _to_array(paired.differences)
    verdict = decide_verdict(interval, margin) if paired.is_sound else "inconclusive"
    needed = None
    if verdict == "inconclusive" and paired.is_sound and len(values) > 1:
        needed = _estimate_trials_needed(values, margin, level, is_sequential)
    return Judgement(
        float(values.mean()) if len(values) else None,
        *(interval, level, margin, len(values), int((values > 0).sum()), verdict, needed, paired),
    )


def _estimate_trials_needed(
    values: NDArray[np.float64], margin: float, level: float, is_sequential: bool
) -> TrialsNeeded:
    from scipy.special import chdtri

    mean, spread = _summarize(values)
    freedom = len(values) - 1
    low, high = (
        count_trials_needed(
            *(mean, spread * float(np.sqrt(freedom / chdtri(freedom, tail)))),
            above=len(values),
            margin=margin,
            level=level,
            is_sequential=is_sequential,
        )
        for tail in (_PILOT_LEVEL / 2, 1 - _PILOT_LEVEL / 2)
    )
    return TrialsNeeded(low, high if len(values) >= MIN_PILOT else None)


def _has_sign(paired: PairedTrials, interval: tuple[float, float] | None) -> bool:
    return paired.is_sound and interval is not None and (interval[0] > 0 or interval[1] < 0)


def _to_array(differences: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(differences, dtype=np.float64).round(_DECIMALS)


def _summarize(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean and the standard deviation (ddof 1), which is exactly 0 if all values are equal."""
    return float(values.mean()), 0.0 if (values == values[0]).all() else float(values.std(ddof=1))


def _is_sign_test_significant(trials: int, level: float) -> bool:
    return bool(2.0 ** (1 - trials) <= level)
