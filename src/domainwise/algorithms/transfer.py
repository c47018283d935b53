"""Transfer: features on which no classifier near ours has unequal losses in the domains (Zhang et al. 2021)."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm, Batches, Measurements, concatenate_batches, mean_per_domain
from domainwise.hparams import Choice, Hparams, Power, Uniform, hparam
from domainwise.networks import Network
from domainwise.perturbations.distributed import mean_over_ranks


@dataclass(frozen=True)
class TransferHparams(Hparams):
    gap_weight: float = hparam(
        1.0,
        help="Weight of the gap between the domains' losses (lambda).",
        search=Power(10, -2, 1),
        key="t_lambda",
        low=0,
    )
    radius: float = hparam(
        2.0,
        help="Largest distance of the adversary's weights from the classifier's (delta).",
        search=Uniform(0.1, 3.0),
        key="delta",
        above=0,
    )
    ascent_steps: int = hparam(
        10, help="Steps of the adversary per update.", search=Choice((1, 2, 5)), key="d_steps_per_g", low=1
    )
    ascent_step_size: float = hparam(
        1e-3, help="Step size of the adversary.", search=Power(10, -4.5, -2.5), key="lr_d", low=0
    )


class Transfer(Algorithm):
    """Transferable features: a penalty on the largest gap between domain losses that a nearby classifier would have."""

    group = "alignment"
    source = "Zhang et al. 2021"
    min_domains = 2
    needs_features = True
    Hparams = TransferHparams
    hparams: TransferHparams
    network: Network

    def setup(self) -> None:
        # Moved by `_ascend_` only.
        self.adversary = copy.deepcopy(self.network.classifier).requires_grad_(False)

    def update(self, batches: Batches) -> Measurements:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        loss = F.cross_entropy(self.network(x), y)
        self.descend_(loss)

        gap = self._compute_gap(self.network.featurizer(x), y, batches)
        if gap.requires_grad:  # not if the featurizer is frozen
            self.descend_(self.hparams.gap_weight * gap)

        with torch.no_grad():
            features = self.network.featurizer(x)
        return Measurements(loss=loss, gap=self._ascend_(features, y, batches))

    def _compute_gap(self, features: Tensor, y: Tensor, batches: Batches) -> Tensor:
        """Return the difference between the largest and the smallest loss of the adversary in a domain."""
        losses = mean_per_domain(F.cross_entropy(self.adversary(features), y, reduction="none"), batches)
        return losses.max() - losses.min()

    def _ascend_(self, features: Tensor, y: Tensor, batches: Batches) -> Tensor:
        """Move the adversary from the classifier to a larger gap, and return the gap before the last step."""
        hparams = self.hparams
        self.adversary.load_state_dict(self.network.classifier.state_dict())
        center = [weight.detach() for weight in self.network.classifier.parameters()]
        weights: list[Tensor] = list(self.adversary.requires_grad_(True).parameters())
        for _ in range(hparams.ascent_steps):
            gap = self._compute_gap(features, y, batches)
            gradient = mean_over_ranks(torch.autograd.grad(gap, weights))
            with torch.no_grad():
                torch._foreach_add_(weights, gradient, alpha=hparams.ascent_step_size * hparams.gap_weight)
                offset = torch._foreach_sub(weights, center)
                distance = torch.stack(torch._foreach_norm(offset)).norm()
                torch._foreach_mul_(offset, hparams.radius / distance)
                projected = torch._foreach_add(center, offset)
                # A choice on the device, which a branch would wait for.
                is_outside = distance > hparams.radius
                pairs = zip(projected, weights, strict=True)
                torch._foreach_copy_(weights, [torch.where(is_outside, *pair) for pair in pairs])
        self.adversary.requires_grad_(False)
        return gap.detach()
