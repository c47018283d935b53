"""MMD: Gaussian kernels by a double loop over samples, for each pair of domains."""

import copy
from itertools import combinations

import pytest
import torch
from tiny_problem import domains
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import MMD
from domainwise.networks import Network

PENALTY_WEIGHT, LR, WEIGHT_DECAY = 2.5, 0.01, 0.1
GAMMAS = (0.001, 0.01, 0.1, 1, 10, 100, 1000)


def near_domains(sizes: tuple[int, ...], seed: int) -> list[tuple[Tensor, Tensor]]:
    """Two nearly equal images in different domains, and two equal ones in one domain, for the narrowest kernels."""
    whole = domains((5,) * len(sizes), seed)
    last = whole[-1][0]
    last[0] = 0.99 * whole[0][0][0] + 0.01 * last[0]
    last[1] = last[0]
    return [(x[:size], y[:size]) for size, (x, y) in zip(sizes, whole, strict=True)]


def feature_network() -> Network:
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.Tanh())
    return Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4)


def mean_kernel(one: Tensor, other: Tensor) -> Tensor:
    total = 0
    for a in one:
        for b in other:
            squared_distance = ((a - b) ** 2).sum()
            total = total + sum((-gamma * squared_distance).exp() for gamma in GAMMAS)
    return total / (len(one) * len(other))


def textbook(network: Network, batches) -> tuple[Tensor, Tensor]:
    """Return loss and penalty of the nonempty domains."""
    features = [network.featurizer(x) for x, y in batches if len(y)]
    labels = [y for _, y in batches if len(y)]
    losses = [F.cross_entropy(network.classifier(z), y) for z, y in zip(features, labels, strict=True)]
    pairs = list(combinations(features, 2))
    penalty = sum(mean_kernel(p, p) + mean_kernel(q, q) - 2 * mean_kernel(p, q) for p, q in pairs) / len(pairs)
    return sum(losses) / len(losses), penalty


@pytest.mark.parametrize("sizes", [(5, 2), (5, 2, 3), (5, 1, 3), (5, 0, 3)])
def test_updates_follow_the_textbook(sizes: tuple[int, ...]) -> None:
    network = feature_network()
    algorithm = MMD(network, num_domains=len(sizes), penalty_weight=PENALTY_WEIGHT, lr=LR, weight_decay=WEIGHT_DECAY)
    expected = copy.deepcopy(network)
    optimizer = torch.optim.Adam(expected.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    for seed in range(3):
        returned = algorithm.update(near_domains(sizes, seed))
        loss, penalty = textbook(expected, near_domains(sizes, seed))
        optimizer.zero_grad()
        (loss + PENALTY_WEIGHT * penalty).backward()
        optimizer.step()
        assert returned == pytest.approx({"loss": loss.item(), "penalty": penalty.item()}, rel=1e-9)
        torch.testing.assert_close(list(network.parameters()), list(expected.parameters()), rtol=1e-8, atol=1e-11)


def penalty_on_a_line(positions: Tensor) -> float:
    """The penalty of two and three samples whose only feature is their only pixel."""
    network = Network(nn.Flatten(), nn.Linear(1, 2), input_shape=(1, 1, 1), num_features=1)
    x, y = positions.reshape(5, 1, 1, 1), torch.zeros(5, dtype=torch.long)
    return MMD(network, num_domains=2).update([(x[:2], y[:2]), (x[2:], y[2:])])["penalty"]


def test_the_diagonal_is_included() -> None:
    # If all samples are far apart: Kxx = 1/2, Kyy = 1/3 and Kxy = 0, for each of the seven kernels.
    assert penalty_on_a_line(1000 * torch.arange(5.0)) == pytest.approx(7 * (1 / 2 + 1 / 3), rel=1e-12)


def test_distances_far_from_the_origin_are_not_lost_to_rounding() -> None:
    positions = torch.tensor([0, 3, 1, 2, 7]) / 64
    assert penalty_on_a_line(positions + 2**20) == pytest.approx(penalty_on_a_line(positions), rel=1e-9)
