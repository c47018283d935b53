"""IB-IRM: IRM's penalty by autograd, the variance of the features by its definition, each with its own schedule."""

import copy

import pytest
import torch
from tiny_problem import domains
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import IBIRM
from domainwise.networks import Network

SIZES = (5, 2, 1, 3)  # the third has no second half, and no variance
PENALTY_WEIGHT, BOTTLENECK_WEIGHT, LR, WEIGHT_DECAY, UPDATES = 30.0, 3.0, 0.01, 0.1, 6


def feature_network() -> Network:
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.Tanh())
    featurizer[1].weight.data *= 4
    return Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4)


def slope(logits: Tensor, y: Tensor) -> Tensor:
    scale = torch.ones((), requires_grad=True)
    return torch.autograd.grad(F.cross_entropy(logits * scale, y), scale, create_graph=True)[0]


def textbook(network: Network, anneal_steps: int, bottleneck_steps: int, resets: set[int]) -> list[dict[str, float]]:
    """Update `network` in place and return what each update measured; Adam is reset before the updates `resets`."""
    measured = []
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    for done in range(UPDATES):
        loss = penalty = bottleneck = 0
        for x, y in domains(SIZES, done):
            features = network.featurizer(x)
            logits = network.classifier(features)
            loss = loss + F.cross_entropy(logits, y) / 4
            if len(y) > 1:
                penalty = penalty + slope(logits[0::2], y[0::2]) * slope(logits[1::2], y[1::2]) / 4
                squares = (features - features.sum(0) / len(y)) ** 2
                bottleneck = bottleneck + (squares.sum(0) / (len(y) - 1)).sum() / 4 / 4
        if done in resets:
            optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
        objective = loss + (1 if done < anneal_steps else PENALTY_WEIGHT) * penalty
        if done >= bottleneck_steps:
            objective = objective + BOTTLENECK_WEIGHT * bottleneck
        optimizer.zero_grad()
        objective.backward()
        optimizer.step()
        measured.append({"loss": loss.item(), "penalty": penalty.item(), "bottleneck": bottleneck.item()})
    return measured


def updated(network: Network, anneal_steps: int, bottleneck_steps: int) -> list[dict[str, float]]:
    algorithm = IBIRM(
        network,
        num_domains=4,
        penalty_weight=PENALTY_WEIGHT,
        anneal_steps=anneal_steps,
        bottleneck_weight=BOTTLENECK_WEIGHT,
        bottleneck_anneal_steps=bottleneck_steps,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
    )
    return [algorithm.update(domains(SIZES, seed)) for seed in range(UPDATES)]


@pytest.mark.parametrize(("anneal_steps", "bottleneck_steps"), [(0, 0), (2, 4), (4, 2), (3, 3), (UPDATES, 2)])
def test_updates_follow_the_textbook(anneal_steps: int, bottleneck_steps: int) -> None:
    network = feature_network()
    expected = copy.deepcopy(network)
    measured = textbook(expected, anneal_steps, bottleneck_steps, {anneal_steps, bottleneck_steps})
    assert updated(network, anneal_steps, bottleneck_steps) == [pytest.approx(one, rel=1e-9) for one in measured]
    torch.testing.assert_close(list(network.parameters()), list(expected.parameters()), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("resets", [{2}, {4}])
def test_without_one_of_the_optimizer_resets_the_result_differs(resets: set[int]) -> None:
    network, kept = feature_network(), feature_network()
    updated(network, 2, 4)
    textbook(kept, 2, 4, resets)
    assert (network.classifier.weight - kept.classifier.weight).abs().max() > LR / 100
