"""DSU: features in uncertain styles, as far from their own as those of the batch are apart (Li et al. 2022)."""

from collections.abc import Sequence

from torch import Tensor

from domainwise.algorithms.styles import EPS, StyleAlgorithm, StyleHparams, compute_style
from domainwise.perturbations.base import draw_noise


class DSU(StyleAlgorithm):
    """Domain shifts with uncertainty: Gaussian noise on the means and standard deviations of features."""

    source = "Li et al. 2022"
    Hparams = StyleHparams

    def restyle(self, features: Tensor, sizes: Sequence[int]) -> Tensor:
        mean, deviation = compute_style(features)
        noise = draw_noise("normal", (2, *mean.shape), like=features, generator=self.generator)
        new_mean, new_deviation = mean + noise[0] * _spread(mean), deviation + noise[1] * _spread(deviation)
        return (features - mean) / deviation * new_deviation + new_mean


def _spread(statistic: Tensor) -> Tensor:
    """Return the standard deviation over the batch, (1, C, 1, 1)."""
    return (statistic.var(0, correction=0, keepdim=True) + EPS).sqrt()
