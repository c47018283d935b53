"""CondCAD: neighbours of each sample within its class by loops, and shares of domains computed by hand."""

import math

import pytest
from contrastive_problem import SETTINGS, SIZES, check_updates, penalty_of_equal_features

from domainwise.algorithms import CondCAD
from domainwise.algorithms.cad import CAD


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("sizes", SIZES)
def test_updates_follow_the_textbook(sizes: tuple[int, ...], settings: dict[str, bool]) -> None:
    check_updates(CondCAD, sizes, settings, conditional=True)


def test_shares_of_domains_by_hand() -> None:
    # Class 0 has two samples in domain 0 and one in domain 1; class 1 has one sample, which has no neighbours. The
    # first two have one neighbour in two from the other domain, the sample of domain 1 has only such neighbours.
    labels = [[0, 0, 1], [0]]
    assert penalty_of_equal_features(CondCAD, labels) == pytest.approx(2 * math.log(2) / 3, rel=1e-12)
    assert penalty_of_equal_features(CondCAD, labels, flipped=False) == pytest.approx(math.log(1 / 2), rel=1e-12)


def test_with_one_class_it_is_cad() -> None:
    labels = [[0, 0, 0], [0, 0], [0]]
    assert penalty_of_equal_features(CondCAD, labels) == penalty_of_equal_features(CAD, labels)
