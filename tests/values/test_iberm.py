"""IB-ERM: the variance of each feature within each domain by explicit sums, the schedule by counting updates."""

import copy

import pytest
import torch
from tiny_problem import domains
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import IBERM
from domainwise.networks import Network

PENALTY_WEIGHT, LR, WEIGHT_DECAY, UPDATES = 3.0, 0.01, 0.1, 5


def feature_network() -> Network:
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.Tanh())
    featurizer[1].weight.data *= 4
    return Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4)


def mean_variance(features: Tensor) -> Tensor | float:
    """Return the mean over features of the unbiased variance; a single sample has none."""
    count, width = features.shape
    if count == 1:
        return 0.0
    total = 0
    for column in features.T:
        mean = sum(column) / count
        total = total + sum((value - mean) ** 2 for value in column) / (count - 1)
    return total / width


def textbook(network: Network, sizes: tuple[int, ...], anneal_steps: int, *, rebuilds: bool = True) -> list[dict]:
    """Update `network` in place and return what each update measured."""
    measured = []
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    for done in range(UPDATES):
        present = [(x, y) for x, y in domains(sizes, done) if len(y)]
        loss = penalty = 0
        for x, y in present:
            features = network.featurizer(x)
            loss = loss + F.cross_entropy(network.classifier(features), y) / len(present)
            penalty = penalty + mean_variance(features) / len(present)
        weight = 0 if done < anneal_steps else PENALTY_WEIGHT
        if done == anneal_steps and rebuilds:
            optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
        optimizer.zero_grad()
        (loss + weight * penalty).backward()
        optimizer.step()
        measured.append({"loss": loss.item(), "penalty": penalty.item()})
    return measured


def updated(network: Network, sizes: tuple[int, ...], anneal_steps: int) -> list[dict[str, float]]:
    algorithm = IBERM(
        network,
        num_domains=len(sizes),
        penalty_weight=PENALTY_WEIGHT,
        anneal_steps=anneal_steps,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
    )
    return [algorithm.update(domains(sizes, seed)) for seed in range(UPDATES)]


@pytest.mark.parametrize("anneal_steps", [0, 2, UPDATES])
@pytest.mark.parametrize("sizes", [(5, 2), (5, 2, 3), (5, 1, 3), (5, 0, 3), (4,)])
def test_updates_follow_the_textbook(sizes: tuple[int, ...], anneal_steps: int) -> None:
    network = feature_network()
    expected = copy.deepcopy(network)
    measured = textbook(expected, sizes, anneal_steps)
    assert updated(network, sizes, anneal_steps) == [pytest.approx(one, rel=1e-9) for one in measured]
    torch.testing.assert_close(list(network.parameters()), list(expected.parameters()), rtol=1e-8, atol=1e-11)


def test_without_the_optimizer_reset_the_result_differs() -> None:
    network, kept = feature_network(), feature_network()
    updated(network, (5, 2), anneal_steps=2)
    textbook(kept, (5, 2), anneal_steps=2, rebuilds=False)
    assert (network.classifier.weight - kept.classifier.weight).abs().max() > LR / 10


def test_two_features_by_hand() -> None:
    """Variances (2, 0) and (0, 9): means over features 1 and 4.5."""
    network = Network(nn.Flatten(), nn.Linear(2, 2), input_shape=(2, 1, 1), num_features=2)
    points = [[[0.0, 0.0], [2.0, 0.0]], [[1.0, 0.0], [1.0, 3.0], [1.0, 6.0]]]
    batches = [(torch.tensor(p).reshape(-1, 2, 1, 1), torch.zeros(len(p), dtype=torch.long)) for p in points]
    assert IBERM(network, num_domains=2).update(batches)["penalty"] == pytest.approx((1 + 4.5) / 2, rel=1e-12)
