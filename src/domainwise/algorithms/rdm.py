"""RDM: losses with the same distribution in the worst domain as in all (Nguyen et al. 2023)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import (
    Batches,
    Objective,
    concatenate_batches,
    mean_per_domain,
    nonempty_domains,
    split_by_domain,
)
from domainwise.algorithms.penalties import AnnealedHparams, AnnealedPenalty, compute_pair_distance
from domainwise.hparams import Choice, DatasetSetting, Uniform, hparam

_BANDWIDTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)


@dataclass(frozen=True)
class RDMHparams(AnnealedHparams):
    BY_DATASET = (
        DatasetSetting("penalty_weight", 5.0, Uniform(1, 10), ("pacs", "terra_incognita")),
        DatasetSetting("penalty_weight", 0.5, Uniform(0.1, 1), ("domainnet",)),
        DatasetSetting("anneal_steps", 2400, Uniform(1500, 3000, whole=True), ("domainnet",)),
        DatasetSetting("variance_weight", 0.0, Choice((0.0,)), ("office_home", "terra_incognita", "domainnet")),
        DatasetSetting("batch_size", 88, Uniform(70, 100, whole=True), ("pacs", "vlcs", "office_home")),
        DatasetSetting("batch_size", 40, Uniform(30, 60, whole=True), ("terra_incognita", "domainnet")),
    )

    penalty_weight: float = hparam(
        5.0,
        help="Weight of the distance between the losses after anneal_steps updates; before that it is 0.",
        search=Uniform(0.1, 10),
        key="rdm_lambda",
        low=0,
    )
    anneal_steps: int = hparam(
        1500,
        help="Updates before both weights and annealed_lr apply.",
        search=Uniform(800, 2700, whole=True),
        key="rdm_penalty_anneal_iters",
        low=0,
    )
    variance_weight: float = hparam(
        0.004,
        help="Weight of the variance of the losses after anneal_steps updates; before that it is 0.",
        search=Uniform(0.001, 0.007),
        low=0,
    )
    annealed_lr: float = hparam(
        1.5e-5, help="Learning rate after anneal_steps updates.", search=Uniform(8e-6, 2e-5), key="rdm_lr", low=0
    )


class RDM(AnnealedPenalty):
    """Risk distribution matching: a penalty on the distance between the losses of the worst domain and of all."""

    group = "invariance"
    source = "Nguyen et al. 2023"
    min_domains = 2
    Hparams = RDMHparams
    hparams: RDMHparams
    initial_weight = 0.0

    def begin_update_(self) -> None:
        if self.updates == self.hparams.anneal_steps:
            self.optimizer = self.build_optimizer(self.network.parameters(), lr=self.hparams.annealed_lr)

    @property
    def variance_weight(self) -> float:
        """Weight of the variance in the current update."""
        return self.hparams.variance_weight if self.updates >= self.hparams.anneal_steps else 0.0

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, domain = concatenate_batches(batches, self.num_domains)
        sample_losses = F.cross_entropy(self.network(x), y, reduction="none")
        losses = mean_per_domain(sample_losses, batches)
        worst = losses.argmax()
        is_worst = domain == nonempty_domains(batches, x.device).take(worst)
        with torch.autocast(x.device.type, enabled=False):
            penalty = _compute_distance(sample_losses.to(torch.promote_types(losses.dtype, torch.float32)), is_worst)
        # Of all domains, as their number of samples is only known if the worst is chosen afterwards.
        variances = torch.stack([_compute_variance(part) for part in split_by_domain(sample_losses, batches)])
        loss, variance = losses.mean(), _compute_variance(sample_losses) + variances.take(worst)
        objective = loss + self.penalty_weight * penalty + self.variance_weight * variance
        return objective, {"loss": loss, "penalty": penalty, "variance": variance}


def _compute_distance(values: Tensor, is_in_part: Tensor) -> Tensor:
    """Return the squared distance, under Gaussian kernels, between some of the values (b,) and all of them."""
    distances = (values[:, None] - values).square()
    kernel = torch.stack([(-gamma * distances).exp() for gamma in _BANDWIDTHS]).sum(0)
    part = is_in_part.to(values.dtype)
    return compute_pair_distance(kernel, [part / part.sum(), torch.full_like(part, 1 / len(part))])


def _compute_variance(values: Tensor) -> Tensor:
    """Return the unbiased variance, or zero for a single value."""
    return values.var() if len(values) > 1 else values.new_zeros(())
