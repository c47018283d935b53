"""VREx: equal risks in all domains (Krueger et al. 2020)."""

from dataclasses import dataclass

from torch.nn import functional as F

from domainwise.algorithms.base import Batches, Objective, concatenate_batches, mean_per_domain
from domainwise.algorithms.penalties import AnnealedHparams, AnnealedPenalty
from domainwise.hparams import Power, hparam


@dataclass(frozen=True)
class VRExHparams(AnnealedHparams):
    penalty_weight: float = hparam(
        10.0,
        help="Weight of the penalty after anneal_steps updates; before that it is 1.",
        search=Power(10, -1, 5),
        key="vrex_lambda",
        low=0,
    )
    anneal_steps: int = hparam(
        500,
        help="Updates before penalty_weight applies.",
        search=Power(10, 0, 4, whole=True),
        key="vrex_penalty_anneal_iters",
        low=0,
    )


class VREx(AnnealedPenalty):
    """Variance risk extrapolation: a penalty on the variance of the domains' losses."""

    group = "invariance"
    source = "Krueger et al. 2020"
    min_domains = 2
    Hparams = VRExHparams
    hparams: VRExHparams

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        losses = mean_per_domain(F.cross_entropy(self.network(x), y, reduction="none"), batches)
        loss, penalty = losses.mean(), losses.var(correction=0)
        return loss + self.penalty_weight * penalty, {"loss": loss, "penalty": penalty}
