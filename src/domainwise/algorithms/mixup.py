"""Mixup between domains: convex combinations of images and labels (Yan et al. 2020)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import (
    Batches,
    LossAlgorithm,
    Objective,
    concatenate_batches,
    mean_per_domain,
    nonempty_batches,
)
from domainwise.hparams import Hparams, Power, hparam


@dataclass(frozen=True)
class MixupHparams(Hparams):
    alpha: float = hparam(
        0.2,
        help="Mixing weights are drawn from Beta(alpha, alpha); small values leave most images nearly unmixed.",
        search=Power(10, -1, 1),
        key="mixup_alpha",
        above=0,
    )


class Mixup(LossAlgorithm):
    """Inter-domain mixup: blended images of two domains, with the loss split between both labels accordingly."""

    group = "augmentation"
    source = "Yan et al. 2020"
    min_domains = 2
    Hparams = MixupHparams
    hparams: MixupHparams

    def compute_loss(self, batches: Batches) -> Objective:
        nonempty = nonempty_batches(batches, self.num_domains)
        order = torch.randperm(len(nonempty), generator=self.generator).tolist()
        weights = draw_beta_weights(self.hparams.alpha, len(nonempty), self.generator)
        mixed: list[tuple[Tensor, Tensor]] = []
        other_labels, shares = [], []
        for position, weight in enumerate(weights):
            (x, y), (other_x, other_y) = (nonempty[order[place % len(order)]] for place in (position, position + 1))
            count = min(len(y), len(other_y))
            mixed.append((weight * x[:count] + (1 - weight) * other_x[:count], y[:count]))
            other_labels.append(other_y[:count])
            shares.append(x.new_full((count,), weight))
        x, y, _ = concatenate_batches(mixed, len(mixed))
        logits, share = self.network(x), torch.cat(shares)
        first = F.cross_entropy(logits, y, reduction="none")
        second = F.cross_entropy(logits, torch.cat(other_labels), reduction="none")
        loss = mean_per_domain(share * first + (1 - share) * second, mixed).mean()
        return loss, {"loss": loss}


def draw_beta_weights(alpha: float, count: int, generator: torch.Generator | None) -> list[float]:
    """Draw mixing weights from Beta(alpha, alpha)."""
    # torch's Beta takes no generator, so the run's generator seeds numpy's.
    seed = int(torch.randint(2**62, (), generator=generator))
    return [float(weight) for weight in np.random.default_rng(seed).beta(alpha, alpha, size=count)]
