"""MixStyle: early features in a mix of the styles of two images (Zhou et al. 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from domainwise.algorithms.mixup import draw_beta_weights
from domainwise.algorithms.styles import StyleAlgorithm, StyleHparams, compute_style
from domainwise.hparams import Choice, hparam
from domainwise.perturbations.device import send_to


@dataclass(frozen=True)
class MixStyleHparams(StyleHparams):
    stages: int | None = hparam(2, help="Number of stages that change, counted from the input; none: all.", low=1)
    stem: bool = hparam(False, help="Count the stem of a backbone, the first of its five stages, as a stage.")
    alpha: float = hparam(
        0.1, help="Mixing weights are drawn from Beta(alpha, alpha).", search=Choice((0.1, 0.2, 0.3)), above=0
    )
    mix: Literal["random", "crossdomain"] = hparam(
        "random", help="Mix with the style of any image (random), or of one of another domain (crossdomain)."
    )


class MixStyle(StyleAlgorithm):
    """MixStyle: means and standard deviations of early features are mixed with those of another image."""

    source = "Zhou et al. 2021"
    Hparams = MixStyleHparams
    hparams: MixStyleHparams

    def setup(self) -> None:
        if self.hparams.mix == "crossdomain" and self.num_domains == 1:
            raise ValueError("mix='crossdomain' needs at least 2 training domains, got 1; use mix='random'")
        super().setup()

    def restyle(self, features: Tensor, sizes: Sequence[int]) -> Tensor:
        mean, deviation = compute_style(features.detach())
        weights = draw_beta_weights(self.hparams.alpha, len(features), self.generator)
        weight = send_to(features.device, torch.tensor(weights, dtype=features.dtype))[:, None, None, None]
        other = send_to(features.device, self._draw_partners(sizes))
        new_mean, new_deviation = (weight * each + (1 - weight) * each[other] for each in (mean, deviation))
        return (features - mean) / deviation * new_deviation + new_mean

    def _draw_partners(self, sizes: Sequence[int]) -> Tensor:
        """Return the index of the image that each is mixed with, (b,), on the CPU."""
        count = sum(sizes)
        if self.hparams.mix == "random" or max(sizes) == count:
            return torch.randperm(count, generator=self.generator)
        size = torch.tensor(sizes)
        start, own = (each.repeat_interleave(size) for each in (size.cumsum(0) - size, size))
        # A place among the images of the other domains: those of the own domain are stepped over.
        place = (torch.rand(count, generator=self.generator, dtype=torch.float64) * (count - own)).long()
        return place + own * (place >= start)
