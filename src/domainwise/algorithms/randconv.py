"""RandConv: images through a random filter, which changes textures and keeps shapes (Xu et al. 2021)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import Batches, LossAlgorithm, Objective, concatenate_batches
from domainwise.hparams import Choice, Hparams, hparam
from domainwise.perturbations import FilterPrior
from domainwise.perturbations.base import draw_noise

# Kernels have a size of 1, 3, 5 or 7.
_LARGEST = 7
_VIEWS = 3


@dataclass(frozen=True)
class RandConvHparams(Hparams):
    identity: float = hparam(
        0.5, help="Probability that images are not filtered.", search=Choice((0.0, 0.5)), low=0, high=1
    )
    mixing: bool = hparam(
        True, help="Mix filtered images with their originals, in a random share.", search=Choice((True, False))
    )
    consistency: float = hparam(
        0.0, help="Weight of the distance between the predictions of three views, 10 in the paper; 0: one view.", low=0
    )


class RandConv(LossAlgorithm):
    """Random convolutions: all images of an update pass through one random filter, or stay as they are."""

    group = "augmentation"
    source = "Xu et al. 2021"
    Hparams = RandConvHparams
    hparams: RandConvHparams

    @property
    def is_exact_over_ranks(self) -> bool:
        return True

    def setup(self) -> None:
        if self.input_shape is not None and len(self.input_shape) != 3:
            raise ValueError(f"RandConv needs images of shape (channels, height, width), got {self.input_shape}")
        self.filters = FilterPrior(_LARGEST)

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        logits = self.network(self._draw_view(x))
        loss = F.cross_entropy(logits, y)
        if self.hparams.consistency == 0:
            return loss, {"loss": loss}
        others = [self.network(self._draw_view(x)) for _ in range(_VIEWS - 1)]
        penalty = _compute_divergence(torch.stack([logits, *others]))
        return loss + self.hparams.consistency * penalty, {"loss": loss, "consistency": penalty}

    def _draw_view(self, x: Tensor) -> Tensor:
        # Drawn on the host, so that the device is not waited for.
        if draw_noise("uniform", (), like=torch.empty(0), generator=self.generator).item() < self.hparams.identity:
            return x
        shape = self.filters.point_shape(tuple(x.shape[1:]))
        noise = draw_noise("normal", (1, *shape), like=x, generator=self.generator)
        uniform = draw_noise("uniform", (1, 2), like=x, generator=self.generator)  # size, and share of the filter
        if not self.hparams.mixing:
            uniform[:, 1] = 1.0
        return self.filters.apply(x, self.filters.draw(noise, uniform).expand(len(x), -1, -1)).clamp(0, 1)


def _compute_divergence(logits: Tensor) -> Tensor:
    """Return the mean KL divergence of the views' predictions from their mean, of logits (views, b, classes)."""
    views = logits.log_softmax(2)
    mean = views.logsumexp(0) - math.log(len(views))
    return (views.exp() * (views - mean)).sum(2).mean()
