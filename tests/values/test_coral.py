"""CORAL: means and covariances of features as explicit vectors and matrices, for each pair of domains."""

import copy
from itertools import combinations

import pytest
import torch
from tiny_problem import domains
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import CORAL
from domainwise.networks import Network

PENALTY_WEIGHT, LR, WEIGHT_DECAY = 2.5, 0.01, 0.1


def feature_network() -> Network:
    """Weights large enough for the covariances to matter."""
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.Tanh())
    featurizer[1].weight.data *= 4
    return Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4)


def mean_vector(features: Tensor) -> Tensor:
    return sum(features) / len(features)


def covariance(features: Tensor) -> Tensor:
    deviations = [row - mean_vector(features) for row in features]
    return sum(torch.outer(row, row) for row in deviations) / (len(features) - 1)


def mean_squared_difference(quantities: list[Tensor]) -> Tensor | float:
    """Return the mean over pairs, or zero without pairs."""
    distances = [((one - other) ** 2).mean() for one, other in combinations(quantities, 2)]
    return sum(distances) / len(distances) if distances else 0.0


def textbook(network: Network, batches) -> tuple[Tensor, Tensor]:
    """Return loss and penalty of the nonempty domains; covariances only of domains that have one."""
    features = [network.featurizer(x) for x, y in batches if len(y)]
    labels = [y for _, y in batches if len(y)]
    losses = [F.cross_entropy(network.classifier(z), y) for z, y in zip(features, labels, strict=True)]
    means = [mean_vector(z) for z in features]
    covariances = [covariance(z) for z in features if len(z) > 1]
    return sum(losses) / len(losses), mean_squared_difference(means) + mean_squared_difference(covariances)


@pytest.mark.parametrize(
    "sizes",
    [
        (5, 2),
        (5, 2, 3),
        (2, 5, 3, 4),
        (5, 1, 3),  # one domain without covariance: three pairs of means, one of covariances
        (5, 1),
        (5, 0, 3),
    ],
)
def test_updates_follow_the_textbook(sizes: tuple[int, ...]) -> None:
    network = feature_network()
    algorithm = CORAL(network, num_domains=len(sizes), penalty_weight=PENALTY_WEIGHT, lr=LR, weight_decay=WEIGHT_DECAY)
    expected = copy.deepcopy(network)
    optimizer = torch.optim.Adam(expected.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    for seed in range(4):
        returned = algorithm.update(domains(sizes, seed))
        loss, penalty = textbook(expected, domains(sizes, seed))
        optimizer.zero_grad()
        (loss + PENALTY_WEIGHT * penalty).backward()
        optimizer.step()
        assert returned == pytest.approx({"loss": loss.item(), "penalty": penalty.item()}, rel=1e-9)
        torch.testing.assert_close(list(network.parameters()), list(expected.parameters()), rtol=1e-8, atol=1e-11)


def test_two_features_by_hand() -> None:
    network = Network(nn.Flatten(), nn.Linear(2, 2), input_shape=(2, 1, 1), num_features=2)
    points = [[[0.0, 0.0], [2.0, 0.0]], [[1.0, 0.0], [1.0, 3.0], [1.0, 6.0]]]
    batches = [(torch.tensor(p).reshape(-1, 2, 1, 1), torch.zeros(len(p), dtype=torch.long)) for p in points]
    # Means (1, 0) and (1, 3); covariances diag(2, 0) and diag(0, 9).
    assert CORAL(network, num_domains=2).update(batches)["penalty"] == pytest.approx(9 / 2 + (4 + 81) / 4, rel=1e-12)
