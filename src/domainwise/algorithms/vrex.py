"""VREx: equal risks in all domains (Krueger et al. 2020)."""

from dataclasses import dataclass

from torch.nn import functional as F

from domainwise.algorithms import penalties
from domainwise.algorithms.base import Algorithm, Batches, joined, mean_of_each
from domainwise.hparams import Power, searched


@dataclass(frozen=True)
class VRExHparams(penalties.AnnealedHparams):
    """As for IRM, with a smaller penalty."""

    penalty_weight: float = searched(10.0, Power(10, -1, 5), key="vrex_lambda", low=0)
    anneal_steps: int = searched(500, Power(10, 0, 4, whole=True), key="vrex_penalty_anneal_iters", low=0)


class VREx(Algorithm):
    """Variance risk extrapolation: a penalty on the variance of the domains' losses."""

    source = "Krueger et al. 2020"
    min_domains = 2
    Hparams = VRExHparams
    hparams: VRExHparams

    def update(self, batches: Batches) -> dict[str, float]:
        x, y, _ = joined(batches, self.num_domains)
        losses = mean_of_each(F.cross_entropy(self.network(x), y, reduction="none"), batches)
        penalty = losses.var(correction=0)
        self.descend_(losses.mean() + penalties.next_weight(self, self.hparams) * penalty)
        return {"loss": losses.mean().item(), "penalty": penalty.item()}
