"""Verdicts: intervals against scipy and against the integrals they come from, levels of several claims, and errors."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, stats

from domainwise.errors import DomainwiseError
from domainwise.selection.verdicts import (
    LEVEL,
    MAX_TRIALS,
    PRIOR_PRECISION,
    PairedTrials,
    TrialsNeeded,
    compute_width_factors,
    count_trials_needed,
    decide_verdict,
    estimate_interval,
    judge_differences,
    share_level,
)

SAMPLE = np.array([0.3, -0.4, 1.9, 0.8, 1.1, 0.2, 1.4])


@pytest.mark.parametrize("level", [0.05, 0.01])
def test_interval_of_a_fixed_number_of_trials_is_students(level: float) -> None:
    expected = stats.t.interval(1 - level, len(SAMPLE) - 1, SAMPLE.mean(), stats.sem(SAMPLE))
    assert estimate_interval(SAMPLE, level) == pytest.approx(expected)


def compute_bayes_factor(sample: NDArray[np.float64], mean: float) -> float:
    """Return the evidence against `mean`, by integration over the standard deviation with the right-Haar prior."""
    count, centered = len(sample), sample - mean
    # With an effect size from N(0, 1 / c^2), the values are Gaussian with this covariance times the variance.
    covariance = np.eye(count) + np.ones((count, count)) / PRIOR_PRECISION

    def integrate_out(square: float, determinant: float) -> float:
        def density(log_sigma: float) -> float:
            return float(np.exp(-count * log_sigma - square / 2 * np.exp(-2 * log_sigma)) / determinant**0.5)

        return float(integrate.quad(density, -8, 8, epsabs=0, epsrel=1e-10, limit=200)[0])

    alternative = integrate_out(float(centered @ np.linalg.solve(covariance, centered)), np.linalg.det(covariance))
    return alternative / integrate_out(float(centered @ centered), 1.0)


@pytest.mark.parametrize(("count", "level"), [(5, 0.05), (7, 0.05), (7, 0.02)])
def test_sequential_interval_ends_where_the_evidence_is_one_over_the_level(count: int, level: float) -> None:
    interval = estimate_interval(SAMPLE[:count], level, is_sequential=True)
    assert interval is not None
    assert sum(interval) / 2 == pytest.approx(SAMPLE[:count].mean())
    for end in interval:
        assert compute_bayes_factor(SAMPLE[:count], end) == pytest.approx(1 / level, rel=1e-6)


def test_sequential_interval_is_unbounded_while_no_evidence_could_suffice() -> None:
    assert estimate_interval(SAMPLE[:3], is_sequential=True) is None
    assert compute_bayes_factor(SAMPLE[:3], 500.0) < 1 / LEVEL
    assert estimate_interval(SAMPLE[:4], is_sequential=True) is not None
    assert compute_bayes_factor(SAMPLE[:4], 500.0) > 1 / LEVEL


def test_sequential_interval_is_wider() -> None:
    trials = np.arange(2, 200)
    fixed, sequential = (compute_width_factors(trials, LEVEL, is_sequential=each) for each in (False, True))
    assert (sequential > fixed).all()
    assert sequential[-1] < 2 * fixed[-1]


def test_one_trial_has_no_interval() -> None:
    assert estimate_interval([3.0]) is None
    assert estimate_interval([]) is None


def test_equal_differences_need_as_many_trials_as_a_sign_test() -> None:
    # 2^(1 - 5) is above .05, 2^(1 - 6) below. A tenth of points that are added up differ in their last bits.
    for value in (0.0, 0.1, 0.1 + 0.2):
        assert estimate_interval([value] * 5) is None
        assert estimate_interval([value] * 6) == pytest.approx((value, value))
        assert estimate_interval([value] * 6, is_sequential=True) == pytest.approx((value, value))
    assert estimate_interval([0.3] * 3 + [0.1 + 0.2] * 2) is None
    identical = judge_differences({"a": [0.0] * 5})["a"]
    assert (identical.verdict, str(identical.trials_needed)) == ("inconclusive", "6")
    assert judge_differences({"a": [0.0] * 6})["a"].verdict == "no practical difference"
    assert judge_differences({"a": [2.0] * 6})["a"].verdict == "holds"
    assert str(judge_differences({"a": [0.0] * 6}, margin=0.0)["a"].trials_needed) == "more than 1000"


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((0.1, 3.0), "holds"),
        ((-3.0, -0.1), "does not hold"),
        ((-0.1, 3.0), "inconclusive"),
        ((-2.0, 0.5), "inconclusive"),
        ((-0.9, 0.9), "no practical difference"),
        # Better, but not by anything that matters.
        ((0.1, 0.9), "no practical difference"),
        ((-0.9, -0.1), "no practical difference"),
        ((0.1, 1.0), "holds"),
        ((0.0, 3.0), "inconclusive"),
        (None, "inconclusive"),
    ],
)
def test_the_verdict_follows_from_the_interval(interval: tuple[float, float] | None, verdict: str) -> None:
    assert decide_verdict(interval, margin=1.0) == verdict


def test_judgement_of_one_claim() -> None:
    judgement = judge_differences({"a": SAMPLE.tolist()}, margin=0.5)["a"]
    assert judgement.estimate == pytest.approx(SAMPLE.mean())
    assert judgement.interval == estimate_interval(SAMPLE)
    assert (judgement.level, judgement.margin, judgement.trials, judgement.wins) == (0.05, 0.5, 7, 6)
    assert (judgement.verdict, judgement.trials_needed) == ("holds", None)
    mirrored = judge_differences({"a": (-SAMPLE).tolist()})["a"]
    assert (mirrored.verdict, mirrored.wins) == ("does not hold", 1)


def test_few_trials_are_inconclusive() -> None:
    judgements = judge_differences({"none": [], "one": [5.0]})
    for each in judgements.values():
        assert (each.interval, each.verdict, each.trials_needed) == (None, "inconclusive", None)
    assert judgements["none"].estimate is None
    assert judgements["one"].estimate == 5.0
    assert judge_differences({}) == {}


def test_claims_share_the_level_and_a_decided_sign_leaves_half_of_it_to_the_others() -> None:
    clear, open_ = [5.0, 5.1, 4.9, 5.2, 4.8], [3.0, -2.0, 4.0, 1.0, -3.0]
    assert judge_differences({"a": open_, "b": open_, "c": []})["a"].level == pytest.approx(0.05 / 3)
    judgements = judge_differences({"a": open_, "b": clear, "c": clear})
    assert {each.level for each in judgements.values()} == {0.05 / (3 - 2 / 2)}
    assert judgements["a"].interval == estimate_interval(open_, 0.05 / 2)
    # Without a difference that matters nothing is left to others: the difference may still be 0.
    same = [0.1, -0.1, 0.05, -0.05, 0.0]
    judgements = judge_differences({"a": open_, "b": same})
    assert (judgements["b"].verdict, judgements["a"].level) == ("no practical difference", 0.025)


def test_levels_rise_step_by_step() -> None:
    noise = np.array([-1.0, 1.0, -1.0, 1.0, -1.0, 1.0, 0.0, 0.0])
    shared = [share_level(0.05, 3, signed) for signed in range(4)]
    assert shared == pytest.approx([0.05 / 3, 0.05 / 2.5, 0.05 / 2, 0.05 / 1.5])
    # b excludes 0 only at the level that a leaves to it, c not even then.
    means = [3.0, *(noise.std(ddof=1) * compute_width_factors(8, each) for each in (0.018, 0.04))]
    judgements = judge_differences({name: noise + mean for name, mean in zip("abc", means, strict=True)})
    assert [each.verdict for each in judgements.values()] == ["holds", "holds", "inconclusive"]
    assert judgements["c"].level == pytest.approx(0.05 / 2)
    alone = judge_differences({"b": noise + means[1], "c": noise + means[2], "d": []})
    assert {each.verdict for each in alone.values()} == {"inconclusive"}


def test_a_sequential_test_leaves_less_than_half_to_others() -> None:
    level = share_level(0.05, 12, 6, is_sequential=True)
    # The bound on any error: six differences of 0 and six one-sided errors.
    assert 6 * level + 6 * level / (2 - level) <= 0.05 < 6.1 * level + 6.1 * level / (2 - level)
    assert share_level(0.05, 1, 1) == share_level(0.05, 1, 1, is_sequential=True) == 0.05


@pytest.mark.parametrize("is_sequential", [False, True])
@pytest.mark.parametrize(("mean", "margin"), [(1.0, 0.0), (0.0, 1.0), (0.5, 1.0)])
def test_trials_needed_have_the_power(mean: float, margin: float, is_sequential: bool) -> None:
    needed = count_trials_needed(mean, 1.5, margin=margin, is_sequential=is_sequential)
    assert needed is not None
    generator = np.random.default_rng(3)
    shares = []
    for trials in (needed, needed - 3):
        sample = generator.normal(mean, 1.5, (20_000, trials))
        center = sample.mean(axis=1)
        width = compute_width_factors(trials, LEVEL, is_sequential=is_sequential) * sample.std(axis=1, ddof=1)
        shares.append(np.mean((np.abs(center) > width) | (np.abs(center) + width < margin)))
    assert shares[0] == pytest.approx(0.82, abs=0.03)
    assert shares[1] < 0.79


def test_trials_needed_of_a_hopeless_claim() -> None:
    assert count_trials_needed(0.0, 40.8) is None
    needed = count_trials_needed(0.0, 8.2)
    assert needed is not None
    assert 100 < needed <= MAX_TRIALS
    hopeless = judge_differences({"a": [20.0, -20.0] * 10})["a"]
    assert (hopeless.trials_needed, str(hopeless.trials_needed)) == (TrialsNeeded(None, None), "more than 1000")


def test_the_trials_needed_are_a_range_and_a_bound_below_five_trials() -> None:
    pilot = [1.9, -0.2, 3.1, 0.6, -1.0]
    judgement = judge_differences({"a": pilot})["a"]
    assert judgement.trials_needed is not None
    low, high = judgement.trials_needed.low, judgement.trials_needed.high
    assert low is not None
    assert high is not None
    assert low < high
    assert str(judgement.trials_needed) == f"{low} to {high}"
    # The ends of the 80 % interval of the standard deviation, 1.64: chi-square quantiles 7.779 and 1.064.
    mean, spread = np.mean(pilot), np.std(pilot, ddof=1)
    assert low == count_trials_needed(mean, spread * (4 / 7.7794) ** 0.5, above=5)
    assert high == count_trials_needed(mean, spread * (4 / 1.0636) ** 0.5, above=5)
    few = judge_differences({"a": pilot[:4]})["a"].trials_needed
    assert few is not None
    assert (few.high, str(few)) == (None, f"at least {few.low}")


def test_the_range_of_a_pilot_contains_the_number_of_trials_and_its_point_estimate_misses_it() -> None:
    true = count_trials_needed(0.0, 1.0)
    assert true == 12
    generator = np.random.default_rng(0)
    pilots = generator.standard_normal((100, 5))
    ranges = [judge_differences({"a": pilot})["a"].trials_needed for pilot in pilots]
    points = [count_trials_needed(pilot.mean(), pilot.std(ddof=1), above=5) for pilot in pilots]
    assert np.quantile([point or np.inf for point in points], 0.1) <= 6
    inside = [(each.low or np.inf) <= true <= (each.high or np.inf) for each in ranges if each is not None]
    assert len(inside) == 80  # the others are decided
    assert np.mean(inside) > 0.7


@pytest.mark.parametrize(("trials", "share"), [(5, 0.53), (10, 0.35)])
def test_rare_collapses_break_the_interval(trials: int, share: float) -> None:
    """Two equal methods, of which one loses 20 points in 10 % of the trials: 2 points on average."""
    generator = np.random.default_rng(4)
    has_collapsed = generator.random((5000, trials)) < 0.1
    samples = generator.standard_normal((5000, trials)) - 20 * has_collapsed
    widths = compute_width_factors(trials, LEVEL) * samples.std(axis=1, ddof=1)
    is_wrong = np.abs(samples.mean(axis=1) + 2.0) > widths
    assert is_wrong.mean() == pytest.approx(share, abs=0.02)
    # Nearly always because no trial has collapsed so far, and then all trials look alike.
    assert (is_wrong & has_collapsed.any(axis=1)).mean() < 0.005


def test_no_verdict_with_collapsed_or_failed_trials() -> None:
    clear = [5.0, 5.1, 4.9, 5.2, 4.8]
    open_ = [3.0, -2.0, 4.0, 1.0, -3.0]
    for unsound in (PairedTrials(clear, collapsed=1), PairedTrials(clear, failed=1)):
        judgement = judge_differences({"a": unsound})["a"]
        assert (judgement.verdict, judgement.trials_needed) == ("inconclusive", None)
        assert judgement.interval == estimate_interval(clear)
        # The interval is as narrow as it has to be: more trials would not change the verdict.
        assert not judgement.is_open
        # Nothing is left to others by an interval that is not valid.
        both = judge_differences({"a": unsound, "b": open_})
        assert both["b"].level == LEVEL / 2
    same = [0.1, -0.1, 0.05, -0.05, 0.0]
    assert judge_differences({"a": PairedTrials(same, collapsed=1)})["a"].verdict == "inconclusive"
    assert PairedTrials(clear, collapsed=1, failed=2).collapse_rate == "3 of 7"


def test_a_failed_trial_does_not_close_a_claim_unless_most_fail() -> None:
    def is_open(differences: list[float], failed: int) -> bool:
        return judge_differences({"a": PairedTrials(differences, failed=failed)})["a"].is_open

    assert is_open([], 1)
    assert not is_open([], 2)
    assert not is_open([1.0], 2)
    assert is_open([1.0, -1.0], 2)


def test_an_interval_wider_than_all_accuracies_is_none() -> None:
    assert estimate_interval([10.0, -10.0]) is None
    wide = judge_differences({"a": [0.0, 60.0, 3.0]})["a"]
    assert (wide.interval, wide.verdict) == (None, "inconclusive")
    assert estimate_interval([0.0, 20.0, 10.0]) is not None


def test_a_look_after_every_trial_inflates_errors_unless_the_test_is_sequential() -> None:
    generator = np.random.default_rng(0)
    samples = generator.standard_normal((1000, 30))
    trials = np.arange(2, 31)
    means = (samples.cumsum(axis=1) / np.arange(1, 31))[:, 1:]
    spreads = np.stack([samples[:, :count].std(axis=1, ddof=1) for count in trials], axis=1)
    errors = {
        is_sequential: np.any(
            np.abs(means) > compute_width_factors(trials, LEVEL, is_sequential=is_sequential) * spreads, axis=1
        ).mean()
        for is_sequential in (False, True)
    }
    assert errors[False] > 0.2
    assert 0.005 < errors[True] <= 0.05


def test_several_claims_are_right_together() -> None:
    generator = np.random.default_rng(1)
    # Differences of 0 and of exactly the margin, with spreads that let intervals end near both.
    truth = {"a": 0.0, "b": 0.0, "c": 0.0, "d": 1.0, "e": 1.0}
    spreads = {"a": 5.0, "b": 1.0, "c": 1.2, "d": 1.0, "e": 0.1}
    wrong = 0
    for _ in range(300):
        samples = {claim: generator.normal(mean, spreads[claim], 12).tolist() for claim, mean in truth.items()}
        for claim, judgement in judge_differences(samples).items():
            is_right = {
                "holds": truth[claim] > 0,
                "does not hold": truth[claim] < 0,
                "no practical difference": abs(truth[claim]) < 1,
                "inconclusive": True,
            }
            if not is_right[judgement.verdict]:
                wrong += 1
                break
    assert 0 < wrong <= 0.05 * 300 + 2 * (300 * 0.05 * 0.95) ** 0.5


def test_bad_margin_and_level() -> None:
    for margin in (-1.0, float("nan")):
        with pytest.raises(DomainwiseError, match="margin must be at least 0 points"):
            judge_differences({"a": [1.0]}, margin=margin)
    with pytest.raises(DomainwiseError, match="level must be between 0 and 1, got 5"):
        judge_differences({"a": [1.0]}, level=5)
