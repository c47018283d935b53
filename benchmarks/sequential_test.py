"""Errors and power of the verdicts, simulated: one claim and twelve, looked at once and after every trial; with runs
that collapse; and the numbers of trials that pilots ask for.

    python benchmarks/sequential_test.py
    python benchmarks/sequential_test.py --sequences 2000 --trials 30

Prints Markdown. Differences have a standard deviation of 1 point unless a table says otherwise.
"""

import argparse
from collections.abc import Callable, Iterable
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from domainwise.reports.formats import format_markdown_table
from domainwise.selection.verdicts import (
    LEVEL,
    MARGIN,
    MAX_WIDTH,
    PRIOR_PRECISION,
    compute_width_factors,
    count_trials_needed,
    judge_differences,
    share_level,
)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
NUM_CLAIMS = 12
FIXED_TRIALS = 10
FAMILY_TRIALS = 30
EFFECTS = (0.0, 0.5, 0.75, 1.0, 1.5, 2.0)
DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Floats]] = {
    "Gaussian": lambda generator, shape: generator.standard_normal(shape),
    "uniform": lambda generator, shape: generator.uniform(-1, 1, shape),
    "heavy tails (t, 3 df)": lambda generator, shape: generator.standard_t(3, shape),
    "discrete (-1, 0, 0, 1)": lambda generator, shape: generator.choice([-1.0, 0.0, 0.0, 1.0], shape),
    "slightly skewed (gamma, shape 4)": lambda generator, shape: generator.gamma(4, 1, shape) - 4,
    "skewed (exponential)": lambda generator, shape: generator.exponential(1, shape) - 1,
}
# The standard deviation of twelve independent claims, and their true differences.
FAMILIES: dict[str, tuple[float, list[float]]] = {
    "all 0, spread 10": (10.0, [0.0] * 12),
    "all 0, spread 1.3": (1.3, [0.0] * 12),
    "six 0, six 3, spread 3": (3.0, [0.0] * 6 + [3.0] * 6),
    "one 0, eleven 1 (the margin), spread 0.3": (0.3, [0.0] + [1.0] * 11),
}
COLLAPSE_RATE, COLLAPSE_LOSS = 0.1, 20.0
COLLAPSE_SPREADS, COLLAPSE_TRIALS = (1.0, 3.0), (5, 10, 20)
# True difference, standard deviation and margin.
PILOT_CLAIMS = ((0.0, 1.0, 1.0), (2.5, 3.0, 1.0))
PILOT_TRIALS = (3, 5, 8)
Rule = Literal["none", "leave", "holm"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=20_000)
    parser.add_argument("--trials", type=int, default=50, help="largest number of trials")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = np.random.default_rng(options.seed)
    size = (options.sequences, options.trials)
    print(f"{options.sequences} sequences of {options.trials} trials, seed {options.seed}\n")
    print_null_errors(generator, size)
    print_power(generator, size)
    print_precisions(generator, size)
    print_family_errors(generator, size)
    print_collapses(generator, options.sequences)
    print_pilots(generator)


def print_null_errors(generator: np.random.Generator, size: tuple[int, int]) -> None:
    """Print how often the interval of one claim excludes the true difference, 0."""
    rows = []
    for name, draw in DISTRIBUTIONS.items():
        mean, spread = accumulate(draw(generator, size))
        fixed = find_misses(mean, spread, is_sequential=False)
        rows.append(
            (
                name,
                percent(fixed[:, FIXED_TRIALS - 1]),
                percent(fixed.any(axis=1)),
                percent(find_misses(mean, spread, is_sequential=True).any(axis=1)),
            )
        )
    header = (
        "differences",
        f"t interval, one look at {FIXED_TRIALS} trials",
        f"t interval, a look after every trial up to {size[1]}",
        "sequential, a look after every trial",
    )
    print(f"Difference 0: wrong in % of the sequences\n\n{format_markdown_table(header, rows, 3)}\n")


def print_power(generator: np.random.Generator, size: tuple[int, int]) -> None:
    """Print how often and when the sequential test of one claim finds a difference."""
    rows = []
    for effect in EFFECTS[1:]:
        mean, spread = accumulate(generator.normal(effect, 1.0, size))
        found = find_misses(mean, spread, is_sequential=True)
        first = np.where(found.any(axis=1), found.argmax(axis=1) + 1, size[1])
        once = find_misses(mean, spread, is_sequential=False)[:, FIXED_TRIALS - 1]
        by_trials = [percent(found[:, :trials].any(axis=1)) for trials in (10, 20, size[1])]
        rows.append((f"{effect:g}", percent(once), *by_trials, f"{first.mean():.1f}"))
    header = (
        "effect size",
        f"t interval at {FIXED_TRIALS} trials",
        *(f"sequential, within {trials} trials" for trials in (10, 20, size[1])),
        "mean number of trials until decided",
    )
    print(f"Difference found in % of the sequences\n\n{format_markdown_table(header, rows, 5)}\n")


def print_precisions(generator: np.random.Generator, size: tuple[int, int]) -> None:
    """Print the power within 20 trials for other priors of the sequential test."""
    samples = {effect: accumulate(generator.normal(effect, 1.0, (size[0], 20))) for effect in EFFECTS[1:]}
    rows = []
    for precision in (0.0625, 0.25, 0.5, 1.0, 2.0, 4.0, 9.0):
        cells = []
        for mean, spread in samples.values():
            found = find_misses(mean, spread, is_sequential=True, precision=precision)
            first = np.where(found.any(axis=1), found.argmax(axis=1) + 1, 20)
            cells.append(f"{percent(found.any(axis=1))} ({first.mean():.1f})")
        rows.append((f"{precision:g}", *cells))
    header = ("c^2", *(f"effect size {effect:g}" for effect in EFFECTS[1:]))
    print(f"Found within 20 trials, % (mean trials)\n\n{format_markdown_table(header, rows, len(EFFECTS) - 1)}\n")


def print_family_errors(generator: np.random.Generator, size: tuple[int, int]) -> None:
    """Print how often at least one of twelve verdicts is wrong."""
    rows = []
    for name, (spread, truth) in FAMILIES.items():
        samples = generator.normal(0, spread, (size[0], NUM_CLAIMS, size[1])) + np.array(truth)[:, None]
        mean, deviation = accumulate(samples)

        def measure(rule: Rule, looks: Iterable[int], is_sequential: bool) -> str:
            wrong = [find_wrong_verdicts(mean, deviation, truth, each, rule, is_sequential) for each in looks]  # noqa: B023
            return percent(np.any(wrong, axis=0))

        once = [measure(rule, [FAMILY_TRIALS], False) for rule in get_args(Rule)]
        rows.append((name, *once, measure("holm", range(2, size[1] + 1), True)))
    header = (
        "true differences",
        f"uncorrected, {FAMILY_TRIALS} trials",
        f"level shared by undecided claims, {FAMILY_TRIALS} trials",
        f"as used, {FAMILY_TRIALS} trials",
        "as used, sequential, a look after every trial",
    )
    print(f"Any of twelve verdicts wrong, in % of the sequences\n\n{format_markdown_table(header, rows, 4)}")


def print_collapses(generator: np.random.Generator, sequences: int) -> None:
    """Print how often the t interval excludes the true difference if a method loses 20 points in 10 % of its trials."""
    rows = []
    for spread in COLLAPSE_SPREADS:
        for trials in COLLAPSE_TRIALS:
            has_collapsed = generator.random((sequences, trials)) < COLLAPSE_RATE
            samples = generator.normal(0, spread, has_collapsed.shape) - COLLAPSE_LOSS * has_collapsed
            widths = compute_width_factors(trials, LEVEL) * samples.std(axis=1, ddof=1)
            is_wrong = np.abs(samples.mean(axis=1) + COLLAPSE_RATE * COLLAPSE_LOSS) > widths
            is_seen = has_collapsed.any(axis=1)
            shares = (is_wrong, is_seen, is_wrong & is_seen, is_wrong & ~is_seen)
            rows.append((f"{spread:g}", str(trials), *map(percent, shares)))
    header = ("spread", "trials", "wrong", "a trial collapsed", "wrong, and a trial collapsed", "wrong, and none did")
    print(f"\n20 points lost in 10 % of the trials, % of the sequences\n\n{format_markdown_table(header, rows, 6)}\n")


def print_pilots(generator: np.random.Generator, pilots: int = 200) -> None:
    """Print which numbers of trials pilots ask for, and how often the range contains the true one."""
    rows = []
    for mean, spread, margin in PILOT_CLAIMS:
        true = count_trials_needed(mean, spread, margin=margin)
        assert true is not None
        for trials in PILOT_TRIALS:
            points, is_inside = [], []
            for pilot in generator.normal(mean, spread, (pilots, trials)):
                needed = judge_differences({"": pilot}, margin=margin)[""].trials_needed
                if needed is not None:
                    estimate = count_trials_needed(pilot.mean(), pilot.std(ddof=1), above=trials, margin=margin)
                    points.append(estimate or np.inf)
                    is_inside.append((needed.low or np.inf) <= true <= (needed.high or np.inf))
            quantiles = " / ".join(f"{each:.0f}" for each in np.quantile(points, (0.1, 0.5, 0.9), method="nearest"))
            claim = f"{mean:g}, spread {spread:g}, margin {margin:g}"
            rows.append((claim, str(true), str(trials), quantiles, percent(np.array(is_inside))))
    header = (
        "difference",
        "trials needed",
        "pilot",
        "from its mean and spread: 10 / 50 / 90 %",
        "the range is right, %",
    )
    print(f"Undecided pilots\n\n{format_markdown_table(header, rows, 4)}")


def accumulate(samples: Floats) -> tuple[Floats, Floats]:
    """Return the mean and the standard deviation (ddof 1) of the first 1, 2, ... values along the last axis."""
    number = np.arange(1, samples.shape[-1] + 1)
    mean = samples.cumsum(axis=-1) / number
    squares = (samples**2).cumsum(axis=-1) - number * mean**2
    # Sums of squares of equal values differ from 0 by rounding errors.
    squares = np.where(squares < 1e-9, 0.0, squares)
    return mean, np.sqrt(squares / np.maximum(number - 1, 1))


def measure_widths(
    spread: Floats, trials: Floats, level: float, *, is_sequential: bool, precision: float = PRIOR_PRECISION
) -> Floats:
    """Return half the widths of the intervals as `estimate_interval` does, infinite where there is none."""
    factors = compute_width_factors(trials, level, is_sequential=is_sequential, precision=precision)
    widths = np.where(np.isinf(factors), np.inf, np.where(np.isinf(factors), 0.0, factors) * spread)
    return np.where(((spread == 0) & (2.0 ** (1 - trials) > level)) | (2 * widths > MAX_WIDTH), np.inf, widths)


def find_misses(mean: Floats, spread: Floats, *, is_sequential: bool, precision: float = PRIOR_PRECISION) -> Bools:
    """Return where the interval of one claim excludes 0, for all numbers of trials; never with a single one."""
    trials = np.arange(2, mean.shape[-1] + 1, dtype=np.float64)
    widths = measure_widths(spread[:, 1:], trials, LEVEL, is_sequential=is_sequential, precision=precision)
    return np.concatenate([np.zeros((len(mean), 1), dtype=bool), np.abs(mean[:, 1:]) > widths], axis=1)


def find_wrong_verdicts(
    mean: Floats, spread: Floats, truth: list[float], trials: int, rule: Rule, is_sequential: bool
) -> Bools:
    """Return in which sequences at least one verdict after this many trials is wrong.

    Args:
        rule: `holm` shares the level as `judge_differences` does, `none` does not, and `leave` shares it between the
            claims that are undecided, whatever the verdicts on the others.
    """
    mean, spread = mean[..., trials - 1], spread[..., trials - 1]
    number = np.asarray(float(trials))
    levels = {
        "none": lambda count: LEVEL,
        "leave": lambda count: LEVEL / max(NUM_CLAIMS - count, 1),
        "holm": lambda count: share_level(LEVEL, NUM_CLAIMS, count, is_sequential=is_sequential),
    }[rule]
    # By the number of claims that leave level to others.
    widths_by_count = np.stack(
        [measure_widths(spread, number, levels(count), is_sequential=is_sequential) for count in range(NUM_CLAIMS + 1)]
    )
    counts = np.full(len(mean), -1)
    verdicts = has_left = np.zeros(mean.shape, dtype=int)
    while (counts != has_left.sum(axis=1)).any():
        counts = has_left.sum(axis=1)
        widths = widths_by_count[counts, np.arange(len(mean))]
        verdicts = decide(mean, widths)
        has_left = (verdicts != 0 if rule == "leave" else np.abs(mean) > widths).astype(int)
    true = np.array(truth)
    is_wrong_sign = ((verdicts == 1) & (true <= 0)) | ((verdicts == -1) & (true >= 0))
    return np.asarray((is_wrong_sign | ((verdicts == 2) & (np.abs(true) >= MARGIN))).any(axis=1))


def decide(mean: Floats, widths: Floats) -> NDArray[np.int_]:
    """Return 1 for "holds", -1 for "does not hold", 2 for "no practical difference", 0 for "inconclusive"."""
    sign = np.where(mean > widths, 1, np.where(mean < -widths, -1, 0))
    return np.where(np.abs(mean) + widths < MARGIN, 2, sign)


def percent(share: Bools) -> str:
    return f"{100 * share.mean():.1f}"


if __name__ == "__main__":
    main()
