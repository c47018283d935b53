"""ANDMask: weights move only where the domains' gradients agree in sign (Parascandolo et al. 2020)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import (
    Algorithm,
    Batches,
    Measurements,
    compute_gradients,
    nonempty_batches,
    trainable_parameters,
)
from domainwise.hparams import Hparams, Uniform, hparam


@dataclass(frozen=True)
class ANDMaskHparams(Hparams):
    agreement: float = hparam(
        1.0,
        help="Required |mean of the domains' gradient signs| per weight (tau); 1: all domains agree.",
        search=Uniform(0.5, 1),
        key="tau",
        low=0,
        high=1,
    )


class ANDMask(Algorithm):
    """AND-mask: the mean gradient without the components whose sign differs between domains."""

    group = "optimization"
    source = "Parascandolo et al. 2020"
    supports_scaling = False
    min_domains = 2
    Hparams = ANDMaskHparams
    hparams: ANDMaskHparams

    def update(self, batches: Batches) -> Measurements:
        weights = list(trainable_parameters(self.network).values())
        losses: list[Tensor] = []
        gradients: list[list[Tensor]] = []
        # Domain by domain: a single forward pass would still need one full backward pass per domain.
        for x, y in nonempty_batches(batches, self.num_domains):
            loss = F.cross_entropy(self.network(x), y)
            gradients.append(compute_gradients(loss, weights))
            losses.append(loss.detach())
        self.apply_gradients_(self.combine_gradients(gradients))
        return Measurements(loss=torch.stack(losses).mean())

    def combine_gradients(self, gradients: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Return one gradient per parameter tensor from `gradients[domain]`."""
        return compute_masked_mean(gradients, self.hparams.agreement)


def compute_masked_mean(gradients: Sequence[Sequence[Tensor]], agreement: float) -> list[Tensor]:
    """Return the mean over domains of `gradients[domain]` for each tensor, masked where the signs disagree.

    Each tensor is divided by the share of its components that remain, so that its length stays about the same.
    """
    mean = [torch.zeros_like(tensor) for tensor in gradients[0]]
    signs = [torch.zeros_like(tensor) for tensor in gradients[0]]
    for domain_gradients in gradients:
        torch._foreach_add_(mean, list(domain_gradients), alpha=1 / len(gradients))
        torch._foreach_add_(signs, torch._foreach_sign(list(domain_gradients)))
    torch._foreach_abs_(signs)
    masks = [(sign >= agreement * len(gradients)).to(sign.dtype) for sign in signs]
    torch._foreach_mul_(mean, masks)
    torch._foreach_div_(mean, [1e-10 + mask.mean() for mask in masks])
    return mean
