"""CausIRL with CORAL: two random mixes of the domains, with explicit means and covariances."""

import pytest
import torch
from mixes_problem import SIZES, check_updates
from torch import Tensor

from domainwise.algorithms import CausIRLCORAL
from domainwise.algorithms.penalties import compute_mix_distance


def distance(first: Tensor, second: Tensor) -> Tensor:
    means = ((first.mean(0) - second.mean(0)) ** 2).mean()
    return means + ((first.T.cov() - second.T.cov()) ** 2).mean()


@pytest.mark.parametrize("sizes", SIZES)
def test_updates_follow_the_textbook(sizes: tuple[int, ...]) -> None:
    check_updates(CausIRLCORAL, sizes, distance)


def test_each_domain_is_cut_at_a_random_place() -> None:
    """All places from 0 to the last sample occur, independently, and samples keep their order."""
    mixes: set[tuple[tuple[float, ...], int]] = set()

    def note(features: Tensor, sizes: list[int]) -> Tensor:
        assert sum(sizes) == 7
        mixes.add((tuple(features.flatten().tolist()), sizes[0]))
        return features.sum()

    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        compute_mix_distance(note, torch.arange(7.0)[:, None], [4, 3], generator)
    expected = set()
    for one in range(4):
        for other in range(3):
            first, second = [*range(one), *range(4, 4 + other)], [*range(one, 4), *range(4 + other, 7)]
            if len(first) > 1:
                expected.add((tuple(map(float, first + second)), len(first)))
    assert mixes == expected
