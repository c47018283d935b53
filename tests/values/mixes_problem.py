"""Updates of CausIRL: cuts drawn one by one, mixes of the domains as lists of samples."""

import copy
from collections.abc import Callable

import pytest
import torch
from tiny_problem import domains
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.penalties import FeatureMatching
from domainwise.networks import Network

PENALTY_WEIGHT, LR, WEIGHT_DECAY, UPDATES = 2.5, 0.01, 0.1, 6
# Uneven, a single sample, an absent domain, never more than one sample in the first mix.
SIZES = [(5, 2), (5, 2, 3), (5, 1, 3), (5, 0, 3), (1, 2), (1, 1)]


def feature_network() -> Network:
    """Weights large enough for the covariances to matter."""
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.Tanh())
    featurizer[1].weight.data *= 4
    return Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4)


def textbook(network: Network, batches, cuts: list[int], distance: Callable[[Tensor, Tensor], Tensor]):
    """Return loss and penalty; each nonempty domain has a cut."""
    losses, first, second = [], [], []
    for (x, y), cut in zip([batch for batch in batches if len(batch[1])], cuts, strict=True):
        features = network.featurizer(x)
        losses.append(F.cross_entropy(network.classifier(features), y))
        for position, feature in enumerate(features):
            (first if position < cut else second).append(feature)
    is_comparable = len(first) > 1 and len(second) > 1
    penalty = distance(torch.stack(first), torch.stack(second)) if is_comparable else torch.tensor(0.0)
    return sum(losses) / len(losses), penalty


def check_updates(method: type[FeatureMatching], sizes: tuple[int, ...], distance) -> None:
    """Compare updates of the method with gradients of the textbook's loss."""
    algorithm = method(
        feature_network(),
        num_domains=len(sizes),
        penalty_weight=PENALTY_WEIGHT,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
        generator=torch.Generator().manual_seed(3),
    )
    draws = torch.Generator().manual_seed(3)
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    penalties = []
    for seed in range(UPDATES):
        returned = algorithm.update(domains(sizes, seed))
        cuts = [int(torch.randint(0, size, (), generator=draws)) for size in sizes if size]
        loss, penalty = textbook(network, domains(sizes, seed), cuts, distance)
        penalties.append(penalty.item())
        optimizer.zero_grad()
        (loss + PENALTY_WEIGHT * penalty).backward()
        optimizer.step()
        assert returned == pytest.approx({"loss": loss.item(), "penalty": penalty.item()}, rel=1e-9, abs=1e-12)
        expected = list(network.parameters())
        torch.testing.assert_close(list(algorithm.network.parameters()), expected, rtol=1e-8, atol=1e-11)
    assert any(penalties) == (max(sizes) > 2)  # both cases are compared above
