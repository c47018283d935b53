"""CORAL: features whose mean and covariance are the same in all domains (Sun and Saenko 2016)."""

import torch
from torch import Tensor

from domainwise.algorithms import penalties
from domainwise.algorithms.base import Algorithm, Batches
from domainwise.networks import Network


class CORAL(Algorithm):
    """Correlation alignment: a penalty on differences of the domains' feature means and covariances."""

    source = "Sun and Saenko 2016"
    min_domains = 2
    Hparams = penalties.MatchingHparams
    hparams: penalties.MatchingHparams
    network: Network
    needs_features = True

    def update(self, batches: Batches) -> dict[str, float]:
        return penalties.update(self, self.network, self.hparams, moment_distance, batches)


def moment_distance(features: Tensor, sizes: list[int]) -> Tensor:
    """The mean over pairs of domains of the mean squared differences of feature means and of covariances.

    Both are kernel distances. For the covariances, |X'X/n - Y'Y/m|^2 holds only the squares of inner products between
    samples, so that no (d, d) matrix is made. A domain with a single sample has no covariance to compare.
    """
    features = features - features.mean(0).detach()  # moments differ by as much wherever the origin is
    width = features.shape[1]
    means = penalties.pair_distance(features @ features.T, penalties.domain_weights(features, sizes))
    centred = torch.cat([part - part.mean(0) for part in features.split(sizes)])
    covariances = penalties.pair_distance(
        (centred @ centred.T).square(), penalties.domain_weights(features, sizes, fewer=1)
    )
    return means / width + covariances / width**2
