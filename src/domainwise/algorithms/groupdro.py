"""GroupDRO: domains with a high loss get a high weight (Sagawa et al. 2019, Algorithm 1)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import (
    Batches,
    LossAlgorithm,
    Objective,
    concatenate_batches,
    factory_kwargs,
    mean_per_domain,
    nonempty_domains,
)
from domainwise.hparams import Hparams, Power, hparam


@dataclass(frozen=True)
class GroupDROHparams(Hparams):
    group_step_size: float = hparam(
        0.01,
        help="How fast the domain weights follow the losses (eta_q in the paper).",
        search=Power(10, -3, -1),
        key="groupdro_eta",
        low=0,
    )


class GroupDRO(LossAlgorithm):
    """Group distributionally robust optimization: the weight of a domain grows with its past losses."""

    group = "invariance"
    source = "Sagawa et al. 2019"
    min_domains = 2
    Hparams = GroupDROHparams
    hparams: GroupDROHparams
    group_weights: Tensor

    def setup(self) -> None:
        self.register_buffer("group_weights", torch.ones(self.num_domains, **factory_kwargs(self.network)))

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        losses = mean_per_domain(F.cross_entropy(self.network(x), y, reduction="none"), batches)
        domains = nonempty_domains(batches, x.device)
        growth = (self.hparams.group_step_size * losses.detach()).exp()
        self.group_weights[domains] *= growth.to(self.group_weights.dtype)
        self.group_weights /= self.group_weights.sum()
        loss = (self.group_weights[domains] * losses).sum() / self.group_weights[domains].sum()
        return loss, {"loss": loss}

    def describe(self) -> dict[str, Any]:
        return {"group_weights": self.group_weights.tolist()}
