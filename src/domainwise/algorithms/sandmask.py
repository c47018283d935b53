"""SANDMask: weights move as far as the domains' gradients agree in sign and size (Shahtalebi et al. 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from domainwise.algorithms.andmask import ANDMask, ANDMaskHparams
from domainwise.hparams import Power, Uniform, hparam

# Stands for an undefined variance, of a single domain, and for an undefined mask, of zero times infinity.
_TINY = 1e-17


@dataclass(frozen=True)
class SANDMaskHparams(ANDMaskHparams):
    agreement: float = hparam(
        0.5,
        help="|mean of the domains' gradient signs| that a weight must exceed to move (tau); at 1 none does.",
        search=Uniform(0, 1),
        key="tau",
        low=0,
        high=1,
    )
    steepness: float = hparam(
        10.0,
        help="How fast the mask grows from 0 to 1 beyond that (k); divided by the variance of the gradients.",
        search=Power(10, -3, 5),
        key="k",
        above=0,
    )


class SANDMask(ANDMask):
    """Smoothed AND-mask: the mean gradient, weighted by how well the domains' gradients agree."""

    group = "optimization"
    source = "Shahtalebi et al. 2021"
    Hparams = SANDMaskHparams
    hparams: SANDMaskHparams

    def combine_gradients(self, gradients: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        agreement, steepness = self.hparams.agreement, self.hparams.steepness
        return [compute_smoothed_mean(torch.stack(each), agreement, steepness) for each in zip(*gradients, strict=True)]


def compute_smoothed_mean(gradients: Tensor, agreement: float, steepness: float) -> Tensor:
    """Return the mean of `gradients` (domains, ...), times a mask in [0, 1] that is divided by its own mean."""
    variance = gradients.var(0) if len(gradients) > 1 else torch.full_like(gradients[0], _TINY)
    excess = gradients.sign().mean(0).abs() - agreement
    mask = (steepness / variance * excess).tanh().clamp(min=0).nan_to_num(nan=_TINY)
    return mask * gradients.mean(0) / (1e-10 + mask.mean())
