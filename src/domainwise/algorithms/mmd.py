"""MMD: features with the same distribution in all domains (Li et al. 2018, CVPR)."""

import torch
from torch import Tensor

from domainwise.algorithms.penalties import FeatureMatching, compute_domain_weights, compute_pair_distance

_BANDWIDTHS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)


class MMD(FeatureMatching):
    """Maximum mean discrepancy: a penalty on the distance between the domains' features under Gaussian kernels."""

    group = "alignment"
    source = "Li et al. 2018 (CVPR)"

    def compute_distance(self, features: Tensor, sizes: list[int]) -> Tensor:
        """Return the mean over pairs of domains of Kxx + Kyy - 2 Kxy, each K a mean over all entries."""
        # Distances do not depend on the origin, and rounding errors are smallest near the mean of the batch.
        features = features - features.mean(0).detach()
        squares = features.square().sum(1)
        distances = (squares[:, None] + squares - 2 * features @ features.T).clamp(min=1e-30)
        kernel = torch.stack([(-gamma * distances).exp() for gamma in _BANDWIDTHS]).sum(0)
        return compute_pair_distance(kernel, compute_domain_weights(features, sizes))
