"""The bottleneck of CAD and CondCAD with loops over samples, and updates that follow it."""

import copy
import math

import pytest
import torch
from tiny_problem import domains
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import CAD
from domainwise.networks import Network

PENALTY_WEIGHT, TEMPERATURE, LR, WEIGHT_DECAY = 2.5, 0.3, 0.01, 0.1
# Uneven, a single sample, an absent domain, only one domain left.
SIZES = [(5, 2), (5, 2, 3), (5, 1, 3), (5, 0, 3), (1, 1), (0, 5)]
SETTINGS = [
    {},
    {"flipped": False},
    {"normalize": True},
    {"project": True},
    {"flipped": False, "normalize": True, "project": True},
]


def feature_network() -> Network:
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.Tanh())
    return Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4)


def textbook_bottleneck(points: list[Tensor], labels: list[int], domain: list[int], conditional: bool, flipped: bool):
    """Return the mean over samples; each has the share of the other domains among its neighbours, or of its own."""
    everyone = range(len(points))
    terms = []
    for i in everyone:
        peers = [j for j in everyone if j != i and labels[j] == labels[i]]
        neighbours = peers if conditional else [j for j in everyone if j != i]
        wanted = [j for j in neighbours if (domain[j] != domain[i]) == flipped]
        if peers and wanted:
            weight = {j: (points[i].dot(points[j]) / TEMPERATURE).exp() for j in neighbours}
            share = sum(weight[j] for j in wanted) / sum(weight.values())
            terms.append((-1 if flipped else 1) * share.log() * TEMPERATURE / 0.07)
    return sum(terms) / len(terms) if terms else torch.tensor(0.0)


def textbook(network: Network, projection: nn.Module, batches, conditional: bool, settings) -> tuple[Tensor, Tensor]:
    points, labels, domain, losses = [], [], [], []
    for index, (xs, ys) in enumerate(batches):
        for x, y in zip(xs, ys, strict=True):
            feature = network.featurizer(x[None])
            losses.append(F.cross_entropy(network.classifier(feature), y[None]))
            point = projection(feature)[0]
            points.append(point / point.norm() if settings.get("normalize") else point)
            labels.append(int(y))
            domain.append(index)
    flipped = settings.get("flipped", True)
    return sum(losses) / len(losses), textbook_bottleneck(points, labels, domain, conditional, flipped)


def check_updates(method: type[CAD], sizes: tuple[int, ...], settings: dict[str, bool], *, conditional: bool) -> None:
    """Compare four updates of the method with gradients of the textbook's loss."""
    algorithm = method(
        feature_network(),
        num_domains=len(sizes),
        penalty_weight=PENALTY_WEIGHT,
        temperature=TEMPERATURE,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
        **settings,
    )
    network, projection = copy.deepcopy(algorithm.network), copy.deepcopy(algorithm.projection)
    expected = [*network.parameters(), *projection.parameters()]
    optimizer = torch.optim.Adam(expected, lr=LR, weight_decay=WEIGHT_DECAY)
    for seed in range(4):
        returned = algorithm.update(domains(sizes, seed))
        loss, penalty = textbook(network, projection, domains(sizes, seed), conditional, settings)
        optimizer.zero_grad()
        (loss + PENALTY_WEIGHT * penalty).backward()
        optimizer.step()
        assert returned == pytest.approx({"loss": loss.item(), "penalty": penalty.item()}, rel=1e-9, abs=1e-12)
        torch.testing.assert_close(list(algorithm.parameters()), expected, rtol=1e-8, atol=1e-11)


def penalty_of_equal_features(method: type[CAD], labels: list[list[int]], **settings: bool) -> float:
    """Return the penalty if all samples have the feature 0, so that all neighbours are equally likely."""
    network = Network(nn.Flatten(), nn.Linear(1, 2), input_shape=(1, 1, 1), num_features=1)
    batches = [(torch.zeros(len(each), 1, 1, 1), torch.tensor(each)) for each in labels]
    penalty = method(network, num_domains=len(labels), **settings).update(batches)["penalty"]
    return penalty * 0.07 / 0.1  # without the ratio of the base temperature to the default


def penalty_of_points(method: type[CAD], points: list[list[float]], **settings: bool) -> float:
    """Return the penalty of one class in which each sample's only feature is its only pixel."""
    network = Network(nn.Flatten(), nn.Linear(1, 2), input_shape=(1, 1, 1), num_features=1)
    batches = [(torch.tensor(p).reshape(-1, 1, 1, 1), torch.zeros(len(p), dtype=torch.long)) for p in points]
    penalty = method(network, num_domains=len(points), **settings).update(batches)["penalty"]
    assert math.isfinite(penalty)
    return penalty * 0.07 / 0.1
