"""ANDMask: weights move only where the domains' gradients agree (Parascandolo et al. 2020)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm, Batches, gradients_of, present, step_along_, trained
from domainwise.hparams import Hparams, Uniform, searched


@dataclass(frozen=True)
class ANDMaskHparams(Hparams):
    """agreement: |mean of the domains' signs| that a weight's gradient must reach to count (tau); 1: all alike."""

    agreement: float = searched(1.0, Uniform(0.5, 1), key="tau", low=0, high=1)


class ANDMask(Algorithm):
    """AND-mask: the mean gradient, without the components whose sign the domains do not agree on."""

    source = "Parascandolo et al. 2020"
    min_domains = 2
    Hparams = ANDMaskHparams
    hparams: ANDMaskHparams

    def update(self, batches: Batches) -> dict[str, float]:
        weights = list(trained(self.network).values())
        losses: list[Tensor] = []
        gradients: list[list[Tensor]] = []
        # Domain by domain: one pass over all of them would need as many full backward passes as there are domains.
        for x, y in present(batches, self.num_domains):
            loss = F.cross_entropy(self.network(x), y)
            gradients.append(gradients_of(loss, weights))
            losses.append(loss.detach())
        step_along_(self, masked_mean(gradients, self.hparams.agreement))
        return {"loss": torch.stack(losses).mean().item()}


def masked_mean(gradients: Sequence[Sequence[Tensor]], agreement: float) -> list[Tensor]:
    """The mean over domains of what `gradients[domain]` holds for each tensor, where their signs agree.

    Each tensor is divided by the share of its components that is kept, so that its length stays about the same.
    """
    mean = [torch.zeros_like(tensor) for tensor in gradients[0]]
    signs = [torch.zeros_like(tensor) for tensor in gradients[0]]
    for of_domain in gradients:
        torch._foreach_add_(mean, list(of_domain), alpha=1 / len(gradients))
        torch._foreach_add_(signs, torch._foreach_sign(list(of_domain)))
    torch._foreach_abs_(signs)
    kept = [(sign >= agreement * len(gradients)).to(sign.dtype) for sign in signs]
    torch._foreach_mul_(mean, kept)
    torch._foreach_div_(mean, [1e-10 + mask.mean() for mask in kept])
    return mean
