"""CAD: neighbours of each sample by loops, and shares of domains computed by hand."""

import math

import pytest
from contrastive_problem import SETTINGS, SIZES, check_updates, penalty_of_equal_features, penalty_of_points

from domainwise.algorithms import CAD


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("sizes", SIZES)
def test_updates_follow_the_textbook(sizes: tuple[int, ...], settings: dict[str, bool]) -> None:
    check_updates(CAD, sizes, settings, conditional=False)


def test_shares_of_domains_by_hand() -> None:
    # Three samples of domain 0 and one of domain 1. The former have one neighbour in three from the other domain, the
    # latter has only such neighbours.
    labels = [[0, 0, 0], [0]]
    assert penalty_of_equal_features(CAD, labels) == pytest.approx(3 * math.log(3) / 4, rel=1e-12)
    # Two neighbours in three from their own domain; the latter has none and does not count.
    assert penalty_of_equal_features(CAD, labels, flipped=False) == pytest.approx(math.log(2 / 3), rel=1e-12)


def test_a_sample_without_others_of_its_class_does_not_count_but_is_a_neighbour() -> None:
    # The sample of class 1 is one of the three neighbours of the others; two of those are of their domain for the first
    # two, none for the last.
    assert penalty_of_equal_features(CAD, [[0, 0, 1], [0]]) == pytest.approx(2 * math.log(3) / 3, rel=1e-12)


def test_large_similarities_keep_their_digits() -> None:
    # The similarities of 1000 to 1000, 1000 and 1000 - 1e-4 are about 1e7 and differ by 0 and 1.
    penalty = penalty_of_points(CAD, [[1000.0, 1000.0], [1000.0 - 1e-4]])
    other_share = math.exp(-1) / (1 + math.exp(-1))
    assert penalty == pytest.approx(-2 * math.log(other_share) / 3, rel=1e-6)
