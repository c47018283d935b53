"""IRM: one classifier that is optimal in every domain at once (Arjovsky et al. 2019, IRMv1)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms import penalties
from domainwise.algorithms.base import Algorithm, Batches, by_domain, joined, mean_of_each


class IRM(Algorithm):
    """Invariant risk minimization: a penalty where scaling the logits would still help some domain."""

    source = "Arjovsky et al. 2019"
    Hparams = penalties.AnnealedHparams
    hparams: penalties.AnnealedHparams

    def update(self, batches: Batches) -> dict[str, float]:
        x, y, _ = joined(batches, self.num_domains)
        logits = self.network(x)
        loss = mean_of_each(F.cross_entropy(logits, y, reduction="none"), batches).mean()
        penalty = torch.stack([_squared_mean(slopes) for slopes in by_domain(_slopes(logits, y), batches)]).mean()
        self.descend_(loss + penalties.next_weight(self, self.hparams) * penalty)
        return {"loss": loss.item(), "penalty": penalty.item()}


def _slopes(logits: Tensor, y: Tensor) -> Tensor:
    """The derivative of each sample's cross-entropy by a factor s of its logits, at s = 1, in closed form."""
    expected = (logits.softmax(1) * logits).sum(1)
    return expected - logits.gather(1, y[:, None]).squeeze(1)


def _squared_mean(slopes: Tensor) -> Tensor:
    """The square of a domain's mean slope, without bias: two halves that share no sample are multiplied."""
    if len(slopes) < 2:
        return slopes.new_zeros(())  # one sample has no second half
    return slopes[::2].mean() * slopes[1::2].mean()
