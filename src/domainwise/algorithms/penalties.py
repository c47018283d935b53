"""A penalty that counts little at first: the schedule that IRM and VREx share."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm, Batches, joined, mean_of_each
from domainwise.hparams import Hparams, Power, searched
from domainwise.networks import Network


@dataclass(frozen=True)
class AnnealedHparams(Hparams):
    """penalty_weight: of the penalty, once `anneal_steps` updates are done; until then its weight is 1."""

    penalty_weight: float = searched(100.0, Power(10, -1, 5), key="irm_lambda", low=0)
    anneal_steps: int = searched(500, Power(10, 0, 4, whole=True), key="irm_penalty_anneal_iters", low=0)


def next_weight(algorithm: Algorithm, hparams: AnnealedHparams) -> float:
    """The penalty's weight in this update, which is counted. Where it jumps the optimizer starts anew."""
    done = algorithm.updates
    algorithm.updates += 1
    if done == hparams.anneal_steps:
        # Adam's running squares know only gradients of the old size; with them the first steps after the jump are huge.
        algorithm.optimizer = algorithm.adam(algorithm.network.parameters())
    return hparams.penalty_weight if done >= hparams.anneal_steps else 1.0


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
