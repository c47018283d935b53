"""GroupDRO: the worst domain counts most (Sagawa et al. 2019, Algorithm 1)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm, Batches, domains_there, joined, like, mean_of_each
from domainwise.hparams import Hparams, Power, searched


@dataclass(frozen=True)
class GroupDROHparams(Hparams):
    """group_step_size: how fast the weights of domains follow their losses (the paper's eta_q)."""

    group_step_size: float = searched(0.01, Power(10, -3, -1), key="groupdro_eta", low=0)


class GroupDRO(Algorithm):
    """Group distributionally robust optimization: domains weigh more the higher their loss has been."""

    source = "Sagawa et al. 2019"
    min_domains = 2
    Hparams = GroupDROHparams
    hparams: GroupDROHparams
    group_weights: Tensor

    def __init__(self, network: nn.Module, *, num_domains: int, **settings: Any) -> None:
        super().__init__(network, num_domains=num_domains, **settings)
        self.register_buffer("group_weights", torch.ones(num_domains, **like(network)))

    def update(self, batches: Batches) -> dict[str, float]:
        x, y, _ = joined(batches, self.num_domains)
        losses = mean_of_each(F.cross_entropy(self.network(x), y, reduction="none"), batches)
        there = domains_there(batches, x.device)
        growth = (self.hparams.group_step_size * losses.detach()).exp()
        self.group_weights[there] *= growth.to(self.group_weights.dtype)
        self.group_weights /= self.group_weights.sum()
        loss = (self.group_weights[there] * losses).sum() / self.group_weights[there].sum()
        self.descend_(loss)
        return {"loss": loss.item()}

    def describe(self) -> dict[str, Any]:
        return {"group_weights": self.group_weights.tolist()}
