"""Paired comparisons: by hand, and the permutation test against every flip written out."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import on_each, run, runs_of

from domainwise.errors import DomainwiseError
from domainwise.reports import make_report
from domainwise.reports.cells import Table
from domainwise.reports.significance import MOST_EXACT, RANDOM_FLIPS, compared, sign_flip_p, smallest_p
from domainwise.selection.runs import Runs


def against(runs: Runs, other: str) -> Table:
    return make_report(runs, versus=other).tables[-1]


# Accuracies on a few thousand images, so that ties and sums that cancel do come up.
@given(st.lists(st.integers(-40, 40), min_size=1, max_size=9))
def test_p_is_the_share_of_all_flips_that_are_as_extreme(counts: list[int]) -> None:
    sums = [abs(sum(s * c for s, c in zip(signs, counts, strict=True))) for signs in _signs(len(counts))]
    expected = sum(one >= abs(sum(counts)) for one in sums) / len(sums)
    assert sign_flip_p(np.array(counts) / 30 * 0.7) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=10))
def test_p_is_a_probability_and_two_sided(values: list[float]) -> None:
    differences = np.array(values)
    p = sign_flip_p(differences)
    assert smallest_p(len(values)) <= p <= 1
    assert sign_flip_p(-differences) == p


def _signs(count: int) -> list[tuple[int, ...]]:
    return list(itertools.product((1, -1), repeat=count))


def test_equal_differences_give_the_smallest_p() -> None:
    # Tenths do not add up exactly, and yet all of them flipped must count as just as extreme.
    for pairs in (1, 2, 5, MOST_EXACT):
        assert sign_flip_p(np.full(pairs, 0.1)) == smallest_p(pairs) == 2 ** (1 - pairs)
    assert sign_flip_p(np.zeros(4)) == 1.0


def test_many_pairs_are_flipped_at_random_and_the_same_each_time() -> None:
    generator = np.random.default_rng(5)
    differences = generator.normal(0.5, 1.0, size=MOST_EXACT + 1)
    exact = np.abs(np.array(_signs(MOST_EXACT + 1)) @ differences) >= abs(differences.sum()) - 1e-9
    p = sign_flip_p(differences)
    assert 0.001 < exact.mean() < 0.9
    assert p == pytest.approx(exact.mean(), abs=4 * (exact.mean() / RANDOM_FLIPS) ** 0.5)
    assert sign_flip_p(differences) == p
    assert sign_flip_p(np.full(60, 1.0)) == smallest_p(60) == 1 / (RANDOM_FLIPS + 1)


def test_a_comparison_by_hand() -> None:
    # Of eight flips of 1, 2 and -1 those with |sum| >= 2: +1+2-1, +1+2+1, -1+2+1 and their mirror images.
    found = compared(np.array([1.0, 2.0, -1.0]))
    assert found.difference == pytest.approx(2 / 3)
    assert found.error == pytest.approx((14 / 9) ** 0.5 / 3**0.5)
    assert (found.pairs, found.ahead, found.p) == (3, 2, 0.75)
    assert compared(np.array([0.0])).error is None
    assert compared(np.array([0.0])).ahead == 0


def test_pairs_are_cells_that_both_have() -> None:
    records = [
        *on_each("erm", (0.5, 0.6, 0.7)),
        run("erm", "a", 0.9, dataset="other", domains=("a", "b")),
        run("erm", "art", 0.1, trial=1),
        run("mat", "art", 0.52),
        run("mat", "a", 0.96, dataset="other", domains=("a", "b")),
        run("mat", "b", 0.96, dataset="other", domains=("a", "b")),
        run("mat", "sketch", 0.96, dataset="third", domains=("a", "sketch")),
        run("mat", "cartoon", 0.5, trial=1),
        run("zeta", "sketch", 0.5, trial=4),
    ]
    table = against(runs_of(records), "erm")
    assert table.title == "Against erm"
    assert [row.algorithm for row in table.rows] == ["mat", "zeta"]
    difference, pairs, ahead, p = table.rows[0].cells
    assert difference.mean == pytest.approx(4.0)
    assert difference.error == pytest.approx(2 / 2**0.5)
    assert (pairs.mean, ahead.mean, p.mean) == (2.0, 2.0, 0.5)
    assert [cell.mean for cell in table.rows[1].cells] == [None] * 4
    assert "zeta: no pairs: no test domain and trial that erm has too." in table.footnotes
    assert "The smallest p that 2 pairs can give is 0.5." in table.footnotes
    assert any("p is optimistic" in note for note in table.footnotes)


def test_a_method_that_is_not_there() -> None:
    with pytest.raises(DomainwiseError, match="unknown method of these runs 'erm'"):
        against(runs_of(on_each("mat", (0.5, 0.6, 0.7))), "erm")


def test_a_method_alone() -> None:
    table = against(runs_of(on_each("mat", (0.5, 0.6, 0.7))), "mat")
    assert table.rows == ()
    assert "There is no other method." in table.footnotes
