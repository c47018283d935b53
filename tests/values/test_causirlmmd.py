"""CausIRL with MMD: two random mixes of the domains, with Gaussian kernels by a double loop over samples."""

import pytest
from mixes_problem import SIZES, check_updates
from torch import Tensor

from domainwise.algorithms import CausIRLMMD

GAMMAS = (0.001, 0.01, 0.1, 1, 10, 100, 1000)


def mean_kernel(one: Tensor, other: Tensor) -> Tensor:
    squared = [((a - b) ** 2).sum() for a in one for b in other]
    return sum((-gamma * each).exp() for each in squared for gamma in GAMMAS) / len(squared)


def distance(first: Tensor, second: Tensor) -> Tensor:
    return mean_kernel(first, first) + mean_kernel(second, second) - 2 * mean_kernel(first, second)


@pytest.mark.parametrize("sizes", SIZES)
def test_updates_follow_the_textbook(sizes: tuple[int, ...]) -> None:
    check_updates(CausIRLMMD, sizes, distance)
