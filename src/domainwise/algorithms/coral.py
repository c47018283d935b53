"""CORAL: features with the same mean and covariance in all domains (Sun and Saenko 2016)."""

import torch
from torch import Tensor

from domainwise.algorithms.penalties import FeatureMatching, compute_domain_weights, compute_pair_distance


class CORAL(FeatureMatching):
    """Correlation alignment: a penalty on differences between the domains' feature means and covariances."""

    group = "alignment"
    source = "Sun and Saenko 2016"

    def compute_distance(self, features: Tensor, sizes: list[int]) -> Tensor:
        """Return the mean over pairs of domains of the mean squared differences of feature means and covariances.

        Both are kernel distances. For the covariances, |X'X/n - Y'Y/m|^2 contains only squared inner products between
        samples, so no (d, d) matrix is created. Domains with a single sample have no covariance to compare.
        """
        features = features - features.mean(0).detach()  # the differences do not depend on the origin
        width = features.shape[1]
        means = compute_pair_distance(features @ features.T, compute_domain_weights(features, sizes))
        centred = torch.cat([part - part.mean(0) for part in features.split(sizes)])
        covariances = compute_pair_distance(
            (centred @ centred.T).square(), compute_domain_weights(features, sizes, correction=1)
        )
        return means / width + covariances / width**2
