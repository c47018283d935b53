"""Penalized training: the annealed penalty of IRM and VREx, and the feature matching of MMD, CORAL and CausIRL."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import Batches, LossAlgorithm, Objective, concatenate_batches, mean_per_domain
from domainwise.hparams import Hparams, Power, hparam
from domainwise.networks import Network


@dataclass(frozen=True)
class AnnealedHparams(Hparams):
    penalty_weight: float = hparam(
        100.0,
        help="Weight of the penalty after anneal_steps updates; before that it is 1.",
        search=Power(10, -1, 5),
        key="irm_lambda",
        low=0,
    )
    anneal_steps: int = hparam(
        500,
        help="Updates before penalty_weight applies.",
        search=Power(10, 0, 4, whole=True),
        key="irm_penalty_anneal_iters",
        low=0,
    )


class AnnealedPenalty(LossAlgorithm):
    """A method with a penalty whose weight jumps to `penalty_weight` after `anneal_steps` updates."""

    Hparams = AnnealedHparams
    hparams: AnnealedHparams
    # Weight of the penalty before the jump.
    initial_weight: ClassVar[float] = 1.0

    def begin_update_(self) -> None:
        if self.updates == self.hparams.anneal_steps:
            # Adam's second moments reflect gradients of the old size; the first steps after the jump would be huge.
            self.optimizer = self.build_optimizer(self.network.parameters())

    @property
    def penalty_weight(self) -> float:
        """Weight of the penalty in the current update."""
        return self.hparams.penalty_weight if self.updates >= self.hparams.anneal_steps else self.initial_weight


@dataclass(frozen=True)
class MatchingHparams(Hparams):
    penalty_weight: float = hparam(
        1.0,
        help="Weight of the distance between the domains' features (gamma).",
        search=Power(10, -1, 1),
        key="mmd_gamma",
        low=0,
    )


class FeatureMatching(LossAlgorithm):
    """A method with a penalty on the distance between the domains' features."""

    min_domains = 2
    needs_features = True
    Hparams = MatchingHparams
    hparams: MatchingHparams
    network: Network

    @abstractmethod
    def compute_distance(self, features: Tensor, sizes: list[int]) -> Tensor:
        """Return the mean distance over pairs of domains.

        Args:
            features: Features of all domains, (b, d).
            sizes: Number of samples per domain, which are consecutive in `features`.
        """

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        features = self.network.featurizer(x)
        losses = mean_per_domain(F.cross_entropy(self.network.classifier(features), y, reduction="none"), batches)
        # Distances are small differences of large numbers, which half precision would lose.
        with torch.autocast(x.device.type, enabled=False):
            exact = features.to(torch.promote_types(features.dtype, torch.float32))
            penalty = self.compute_distance(exact, [len(labels) for _, labels in batches])
        loss = losses.mean()
        return loss + self.hparams.penalty_weight * penalty, {"loss": loss, "penalty": penalty}


def compute_pair_distance(kernel: Tensor, weights: list[Tensor]) -> Tensor:
    """Return the mean over pairs of (u - v)' K (u - v), where K (b, b) is the kernel and u, v are two of the weights.

    For weights (b,) that average over a domain's samples, this is the squared distance between the means of two domains
    in the kernel's feature space. One product serves all pairs.
    """
    if len(weights) < 2:
        return kernel.new_zeros(())
    stacked, count = torch.stack(weights), len(weights)
    products = stacked @ kernel @ stacked.T
    return (count * products.trace() - products.sum()) / (count * (count - 1) / 2)


def compute_domain_weights(like: Tensor, sizes: list[int], correction: int = 0) -> list[Tensor]:
    """Return 1 / (samples - correction) on each domain's own samples and 0 on others, (b,), per domain.

    Domains with at most `correction` samples are left out.
    """
    weights, start = [], 0
    for size in sizes:
        if size > correction:
            row = like.new_zeros(len(like))
            row[start : start + size] = 1 / (size - correction)
            weights.append(row)
        start += size
    return weights


def compute_mix_distance(
    distance: Callable[[Tensor, list[int]], Tensor],
    features: Tensor,
    sizes: list[int],
    generator: torch.Generator | None,
) -> Tensor:
    """Cut each domain's samples at a random place; return the distance between all first and all second parts.

    It is 0 if either side has fewer than two samples.

    Args:
        distance: Maps features and sizes as below to the mean distance over pairs of domains.
        features: Features of all domains, (b, d).
        sizes: Number of samples per domain, which are consecutive in `features`.
        generator: Source of the cuts. The second part has at least one sample.
    """
    first, second = [], []
    for part in features.split(sizes):
        if len(part):
            cut = int(torch.randint(len(part), (), generator=generator))
            first.append(part[:cut])
            second.append(part[cut:])
    mixes = [torch.cat(first), torch.cat(second)]
    mix_sizes = [len(mix) for mix in mixes]
    return distance(torch.cat(mixes), mix_sizes) if min(mix_sizes) > 1 else features.new_zeros(())
