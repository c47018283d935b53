"""IB-IRM: IRM on features that vary as little as the task allows (Ahuja et al. 2021)."""

from dataclasses import dataclass

from torch.nn import functional as F

from domainwise.algorithms.base import Batches, Objective, concatenate_batches, mean_per_domain
from domainwise.algorithms.iberm import compute_bottleneck
from domainwise.algorithms.irm import compute_irm_penalty
from domainwise.algorithms.penalties import AnnealedHparams, AnnealedPenalty
from domainwise.hparams import Power, hparam
from domainwise.networks import Network


@dataclass(frozen=True)
class IBIRMHparams(AnnealedHparams):
    bottleneck_weight: float = hparam(
        100.0,
        help="Weight of the features' variance after bottleneck_anneal_steps updates; before that it is 0.",
        search=Power(10, -1, 5),
        key="ib_lambda",
        low=0,
    )
    bottleneck_anneal_steps: int = hparam(
        500,
        help="Updates before bottleneck_weight applies.",
        search=Power(10, 0, 4, whole=True),
        key="ib_penalty_anneal_iters",
        low=0,
    )


class IBIRM(AnnealedPenalty):
    """Information bottleneck IRM: IRM's penalty, and one on the variance of the features within each domain."""

    group = "invariance"
    source = "Ahuja et al. 2021"
    Hparams = IBIRMHparams
    hparams: IBIRMHparams
    needs_features = True
    network: Network

    def begin_update_(self) -> None:
        if self.updates in (self.hparams.anneal_steps, self.hparams.bottleneck_anneal_steps):
            self.optimizer = self.build_optimizer(self.network.parameters())

    @property
    def bottleneck_weight(self) -> float:
        """Weight of the features' variance in the current update."""
        return self.hparams.bottleneck_weight if self.updates >= self.hparams.bottleneck_anneal_steps else 0.0

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        features = self.network.featurizer(x)
        logits = self.network.classifier(features)
        loss = mean_per_domain(F.cross_entropy(logits, y, reduction="none"), batches).mean()
        penalty, bottleneck = compute_irm_penalty(logits, y, batches), compute_bottleneck(features, batches)
        objective = loss + self.penalty_weight * penalty + self.bottleneck_weight * bottleneck
        return objective, {"loss": loss, "penalty": penalty, "bottleneck": bottleneck}
