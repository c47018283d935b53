"""SD: small logits, so that no feature stops the others from being learned (Pezeshki et al. 2020)."""

from dataclasses import dataclass

from torch.nn import functional as F

from domainwise.algorithms.base import Batches, LossAlgorithm, Objective, concatenate_batches
from domainwise.hparams import Hparams, Power, hparam


@dataclass(frozen=True)
class SDHparams(Hparams):
    penalty_weight: float = hparam(
        0.1, help="Weight of the mean squared logit (lambda).", search=Power(10, -5, -1), key="sd_reg", low=0
    )


class SD(LossAlgorithm):
    """Spectral decoupling: a penalty on the size of the logits instead of the weights."""

    group = "optimization"
    source = "Pezeshki et al. 2020"
    Hparams = SDHparams
    hparams: SDHparams

    @property
    def is_exact_over_ranks(self) -> bool:
        return True

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        logits = self.network(x)
        loss, penalty = F.cross_entropy(logits, y), logits.square().mean()
        return loss + self.hparams.penalty_weight * penalty, {"loss": loss, "penalty": penalty}
