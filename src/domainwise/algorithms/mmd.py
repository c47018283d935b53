"""MMD: features whose distribution is the same in all domains (Li et al. 2018, CVPR)."""

import torch
from torch import Tensor

from domainwise.algorithms import penalties
from domainwise.algorithms.base import Algorithm, Batches
from domainwise.networks import Network

_BANDWIDTHS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)


class MMD(Algorithm):
    """Maximum mean discrepancy: a penalty on how far apart the domains' features are under Gaussian kernels."""

    source = "Li et al. 2018 (CVPR)"
    min_domains = 2
    Hparams = penalties.MatchingHparams
    hparams: penalties.MatchingHparams
    network: Network
    needs_features = True

    def update(self, batches: Batches) -> dict[str, float]:
        return penalties.update(self, self.network, self.hparams, discrepancy, batches)


def discrepancy(features: Tensor, sizes: list[int]) -> Tensor:
    """The mean over pairs of domains of Kxx + Kyy - 2 Kxy, each K a mean over all entries, diagonal included."""
    # Distances do not depend on the origin; near the middle of the batch they lose the least to rounding.
    features = features - features.mean(0).detach()
    squares = features.square().sum(1)
    distances = (squares[:, None] + squares - 2 * features @ features.T).clamp(min=1e-30)
    kernel = torch.stack([(-gamma * distances).exp() for gamma in _BANDWIDTHS]).sum(0)
    return penalties.pair_distance(kernel, penalties.domain_weights(features, sizes))
