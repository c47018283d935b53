"""IGA: equal gradients in all domains (Koyama and Yamaguchi 2020)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from domainwise.algorithms.base import Batches, LossAlgorithm, Objective, nonempty_batches, trainable_parameters
from domainwise.hparams import Hparams, Power, hparam


@dataclass(frozen=True)
class IGAHparams(Hparams):
    penalty_weight: float = hparam(
        1000.0,
        help="Weight of the squared distances between the domains' gradients and their mean (lambda).",
        search=Power(10, 1, 5),
        key="penalty",
        low=0,
    )


class IGA(LossAlgorithm):
    """Inter-environmental gradient alignment: a penalty on the variance of the domains' gradients."""

    group = "invariance"
    source = "Koyama and Yamaguchi 2020"
    supports_scaling = False
    min_domains = 2
    Hparams = IGAHparams
    hparams: IGAHparams

    def update(self, batches: Batches) -> Mapping[str, float]:
        # Fused attention has no second derivative.
        with sdpa_kernel(SDPBackend.MATH):
            return super().update(batches)

    def compute_loss(self, batches: Batches) -> Objective:
        weights = list(trainable_parameters(self.network).values())
        losses: list[Tensor] = []
        gradients: list[Tensor] = []
        # Domain by domain: a single forward pass would still need one full backward pass per domain.
        for x, y in nonempty_batches(batches, self.num_domains):
            losses.append(F.cross_entropy(self.network(x), y))
            gradient = torch.autograd.grad(losses[-1], weights, create_graph=True, materialize_grads=True)
            gradients.append(torch.cat([part.flatten() for part in gradient]))
        loss, stacked = torch.stack(losses).mean(), torch.stack(gradients)
        # The mean needs no graph: deviations sum to zero, so its derivative cancels.
        penalty = (stacked - stacked.mean(0).detach()).square().sum()
        return loss + self.hparams.penalty_weight * penalty, {"loss": loss, "penalty": penalty}
