"""Mixup between domains: convex combinations of images and labels (Yan et al. 2020)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm, Batches, joined, mean_of_each, present
from domainwise.hparams import Hparams, Power, searched


@dataclass(frozen=True)
class MixupHparams(Hparams):
    """alpha: mixing weights are drawn from Beta(alpha, alpha); small ones leave most images nearly as they are."""

    alpha: float = searched(0.2, Power(10, -1, 1), key="mixup_alpha", above=0)


class Mixup(Algorithm):
    """Interdomain mixup: images of two domains laid over one another, the loss shared out alike."""

    source = "Yan et al. 2020"
    min_domains = 2
    Hparams = MixupHparams
    hparams: MixupHparams

    def update(self, batches: Batches) -> dict[str, float]:
        there = present(batches, self.num_domains)
        order = torch.randperm(len(there), generator=self.generator).tolist()
        weights = self._draw_weights(len(there))
        mixed: list[tuple[Tensor, Tensor]] = []
        labels, shares = [], []
        for position, weight in enumerate(weights):
            (x, y), (other_x, other_y) = (there[order[place % len(order)]] for place in (position, position + 1))
            count = min(len(y), len(other_y))
            mixed.append((weight * x[:count] + (1 - weight) * other_x[:count], y[:count]))
            labels.append(other_y[:count])
            shares.append(x.new_full((count,), weight))
        x, y, _ = joined(mixed, len(mixed))
        logits, share = self.network(x), torch.cat(shares)
        first = F.cross_entropy(logits, y, reduction="none")
        second = F.cross_entropy(logits, torch.cat(labels), reduction="none")
        loss = mean_of_each(share * first + (1 - share) * second, mixed).mean()
        self.descend_(loss)
        return {"loss": loss.item()}

    def _draw_weights(self, count: int) -> list[float]:
        # torch's Beta takes no generator, so the run's generator seeds one that does.
        seed = int(torch.randint(2**62, (), generator=self.generator))
        alpha = self.hparams.alpha
        return [float(weight) for weight in np.random.default_rng(seed).beta(alpha, alpha, size=count)]
