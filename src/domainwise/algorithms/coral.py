"""CORAL: features whose mean and covariance are the same in all domains (Sun and Saenko 2016)."""

from typing import Any

import torch
from torch import Tensor, nn

from domainwise.algorithms import matching
from domainwise.algorithms.base import Algorithm
from domainwise.algorithms.batches import Batches
from domainwise.algorithms.features import two_parts


class CORAL(Algorithm):
    """Correlation alignment: a penalty on differences of the domains' feature means and covariances."""

    source = "Sun and Saenko 2016"
    min_domains = 2
    Hparams = matching.MatchingHparams
    hparams: matching.MatchingHparams

    def __init__(self, network: nn.Module, *, num_domains: int, **settings: Any) -> None:
        super().__init__(network, num_domains=num_domains, **settings)
        two_parts(network, "CORAL")

    def update(self, batches: Batches) -> dict[str, float]:
        return matching.update(self, two_parts(self.network, "CORAL"), self.hparams, moment_distance, batches)


def moment_distance(features: Tensor, sizes: list[int]) -> Tensor:
    """The mean over pairs of domains of the mean squared differences of feature means and of covariances.

    Both are kernel distances. For the covariances, |X'X/n - Y'Y/m|^2 holds only the squares of inner products between
    samples, so that no (d, d) matrix is made. A domain with a single sample has no covariance to compare.
    """
    features = features - features.mean(0).detach()  # moments differ by as much wherever the origin is
    width = features.shape[1]
    means = matching.pair_distance(features @ features.T, matching.domain_weights(features, sizes))
    centred = torch.cat([part - part.mean(0) for part in features.split(sizes)])
    covariances = matching.pair_distance(
        (centred @ centred.T).square(), matching.domain_weights(features, sizes, fewer=1)
    )
    return means / width + covariances / width**2
