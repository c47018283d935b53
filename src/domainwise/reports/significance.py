"""Is a method better than another, or was it luck? Both on the same test domains and trials, pair by pair."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from domainwise.errors import unknown
from domainwise.reports.cells import Cell, Column, Row, Table
from domainwise.reports.footnotes import chosen_by

MOST_EXACT = 16
RANDOM_FLIPS = 100_000
_CHUNK = 5_000


@dataclass(frozen=True)
class Comparison:
    """How a method differs from another, in points.

    Args:
        ahead: in how many pairs it is strictly better.
        p: two-sided, of the sign-flip test of the mean difference.
    """

    difference: float
    error: float | None
    pairs: int
    ahead: int
    p: float


def compared(differences: NDArray[np.float64]) -> Comparison:
    """The comparison of one difference a pair, at least one."""
    count = len(differences)
    return Comparison(
        difference=float(differences.mean()),
        error=float(differences.std() / np.sqrt(count)) if count > 1 else None,
        pairs=count,
        ahead=int((differences > 0).sum()),
        p=sign_flip_p(differences),
    )


def sign_flip_p(differences: NDArray[np.float64]) -> float:
    """How often a mean is as far from zero if each difference could as well have had the other sign.

    Every choice of signs counts up to `MOST_EXACT` pairs; beyond that as many seeded random ones as `RANDOM_FLIPS`,
    and the observed signs as one more.
    """
    observed = abs(differences.sum())
    # Sums of the same numbers in another order differ in their last bits; those must still count as equal.
    limit = observed - 1e-9 * np.abs(differences).sum()
    if len(differences) <= MOST_EXACT:
        return float((np.abs(_all_sums(differences)) >= limit).mean())
    generator = np.random.default_rng(0)
    extreme = 1
    for _ in range(RANDOM_FLIPS // _CHUNK):
        signs = generator.integers(0, 2, size=(_CHUNK, len(differences)), dtype=np.int8) * 2.0 - 1.0
        extreme += int((np.abs(signs @ differences) >= limit).sum())
    return extreme / (RANDOM_FLIPS + 1)


def smallest_p(pairs: int) -> float:
    """What the test gives at best: when all pairs have the same sign, only both signs of them all are as extreme."""
    return 2.0 ** (1 - pairs) if pairs <= MOST_EXACT else 1 / (RANDOM_FLIPS + 1)


def versus_table(chosen: pl.DataFrame, selection: str, algorithms: Sequence[str], other: str) -> Table:
    """Every method against `other`, over all cells of dataset, test domain and trial that both have."""
    if other not in algorithms:
        raise unknown("method of these runs", other, algorithms)
    columns = (
        Column(f"difference to {other}", "difference"),
        Column("pairs", "pairs"),
        Column("ahead", "ahead"),
        Column("p", "p"),
    )
    rows, sizes = [], set()
    theirs = chosen.filter(pl.col("algorithm") == other)
    for algorithm in algorithms:
        if algorithm == other:
            continue
        differences = _differences(chosen.filter(pl.col("algorithm") == algorithm), theirs)
        sizes.add(len(differences))
        rows.append(Row(algorithm, _cells(differences, other)))
    notes = (
        f"Points of accuracy above {other}, ± standard error over the pairs: every dataset, test domain and trial that "
        "both have. ahead: pairs in which the method is better.",
        "p: two-sided sign-flip permutation test of the mean difference. Domains of one trial share training data, so "
        "pairs are not independent and p is optimistic.",
        *(f"The smallest p that {_pairs(size)} can give is {smallest_p(size):.2g}." for size in sorted(sizes - {0})),
        *([] if rows else ["There is no other method."]),
        *(f"{row.algorithm}: {row.cells[0].reason}." for row in rows if row.cells[0].reason),
        chosen_by(selection),
    )
    return Table(f"Against {other}", selection, columns, tuple(rows), notes)


def _all_sums(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate((sums + difference, sums - difference))
    return sums


def _differences(ours: pl.DataFrame, theirs: pl.DataFrame) -> NDArray[np.float64]:
    both = ours.join(theirs, on=["dataset", "test_domain", "trial"], how="inner", suffix="_theirs")
    points = both.select(100 * (pl.col("accuracy") - pl.col("accuracy_theirs"))).to_series().sort()
    return np.asarray(points.to_list(), dtype=np.float64)


def _cells(differences: NDArray[np.float64], other: str) -> tuple[Cell, ...]:
    if not len(differences):
        return (Cell(None, reason=f"no pairs: no test domain and trial that {other} has too"),) * 4
    found = compared(differences)
    numbers = (Cell(float(found.pairs)), Cell(float(found.ahead)), Cell(found.p))
    return (Cell(found.difference, found.error, found.pairs), *numbers)


def _pairs(count: int) -> str:
    return "1 pair" if count == 1 else f"{count} pairs"
