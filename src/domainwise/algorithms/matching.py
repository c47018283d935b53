"""The update that MMD and CORAL share: cross-entropy plus a distance between the features of every two domains."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm
from domainwise.algorithms.batches import Batches, joined, mean_of_each
from domainwise.hparams import Hparams, Power, searched
from domainwise.networks import Network

# From features (b, d) and how many of them each domain has to the mean distance over pairs of domains.
Distance = Callable[[Tensor, list[int]], Tensor]


@dataclass(frozen=True)
class MatchingHparams(Hparams):
    """penalty_weight: of the distance between the domains' features (gamma)."""

    penalty_weight: float = searched(1.0, Power(10, -1, 1), key="mmd_gamma", low=0)


def update(
    algorithm: Algorithm, network: Network, hparams: MatchingHparams, distance: Distance, batches: Batches
) -> dict[str, float]:
    x, y, _ = joined(batches, algorithm.num_domains)
    features = network.featurizer(x)
    losses = mean_of_each(F.cross_entropy(network.classifier(features), y, reduction="none"), batches)
    # Distances are small differences of large numbers: half precision would leave nothing of them.
    with torch.autocast(x.device.type, enabled=False):
        exact = features.to(torch.promote_types(features.dtype, torch.float32))
        penalty = distance(exact, [len(labels) for _, labels in batches])
    algorithm.descend_(losses.mean() + hparams.penalty_weight * penalty)
    return {"loss": losses.mean().item(), "penalty": penalty.item()}


def pair_distance(kernel: Tensor, weights: list[Tensor]) -> Tensor:
    """The mean over pairs of (u - v)' K (u - v), where K (b, b) is the kernel and u, v are two of the weights (b,).

    With weights that average over a domain's samples that is the squared distance of two domains' means in the
    kernel's feature space. All pairs come from one product.
    """
    if len(weights) < 2:
        return kernel.new_zeros(())
    stacked, count = torch.stack(weights), len(weights)
    products = stacked @ kernel @ stacked.T
    return (count * products.trace() - products.sum()) / (count * (count - 1) / 2)


def domain_weights(like: Tensor, sizes: list[int], fewer: int = 0) -> list[Tensor]:
    """For each domain of more than `fewer` samples: 1 / (samples - fewer) on its own, 0 on the others, (b,)."""
    weights, start = [], 0
    for size in sizes:
        if size > fewer:
            row = like.new_zeros(len(like))
            row[start : start + size] = 1 / (size - fewer)
            weights.append(row)
        start += size
    return weights
