"""IB-ERM: features that vary as little as the task allows (Ahuja et al. 2021)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import Batches, Objective, concatenate_batches, mean_per_domain, split_by_domain
from domainwise.algorithms.penalties import AnnealedHparams, AnnealedPenalty
from domainwise.hparams import Power, hparam
from domainwise.networks import Network


@dataclass(frozen=True)
class IBERMHparams(AnnealedHparams):
    penalty_weight: float = hparam(
        100.0,
        help="Weight of the features' variance after anneal_steps updates; before that it is 0.",
        search=Power(10, -1, 5),
        key="ib_lambda",
        low=0,
    )
    anneal_steps: int = hparam(
        500,
        help="Updates before penalty_weight applies.",
        search=Power(10, 0, 4, whole=True),
        key="ib_penalty_anneal_iters",
        low=0,
    )


class IBERM(AnnealedPenalty):
    """Information bottleneck ERM: a penalty on the variance of the features within each domain."""

    group = "invariance"
    source = "Ahuja et al. 2021"
    Hparams = IBERMHparams
    hparams: IBERMHparams
    initial_weight = 0.0
    needs_features = True
    network: Network

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        features = self.network.featurizer(x)
        sample_losses = F.cross_entropy(self.network.classifier(features), y, reduction="none")
        loss, penalty = mean_per_domain(sample_losses, batches).mean(), compute_bottleneck(features, batches)
        return loss + self.penalty_weight * penalty, {"loss": loss, "penalty": penalty}


def compute_bottleneck(features: Tensor, batches: Batches) -> Tensor:
    """Return the variance of the features (b, d) within a domain, averaged over features and domains."""
    parts = split_by_domain(features, batches)
    # A single sample has no variance.
    return torch.stack([part.var(0).mean() if len(part) > 1 else part.new_zeros(()) for part in parts]).mean()
