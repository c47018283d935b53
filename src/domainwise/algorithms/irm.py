"""IRM: one classifier that is optimal in all domains at once (Arjovsky et al. 2019, IRMv1)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import Batches, Objective, concatenate_batches, mean_per_domain, split_by_domain
from domainwise.algorithms.penalties import AnnealedPenalty


class IRM(AnnealedPenalty):
    """Invariant risk minimization: a penalty if rescaling the logits would lower the loss of some domain."""

    group = "invariance"
    source = "Arjovsky et al. 2019"

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        logits = self.network(x)
        loss = mean_per_domain(F.cross_entropy(logits, y, reduction="none"), batches).mean()
        penalty = compute_irm_penalty(logits, y, batches)
        return loss + self.penalty_weight * penalty, {"loss": loss, "penalty": penalty}


def compute_irm_penalty(logits: Tensor, y: Tensor, batches: Batches) -> Tensor:
    """Return the mean over domains of the squared derivative of the domain's loss by a factor on its logits."""
    slopes = split_by_domain(_compute_slopes(logits, y), batches)
    return torch.stack([_estimate_squared_mean(each) for each in slopes]).mean()


def _compute_slopes(logits: Tensor, y: Tensor) -> Tensor:
    """Return the derivative of each sample's cross-entropy with respect to a factor s on its logits at s = 1."""
    expected = (logits.softmax(1) * logits).sum(1)
    return expected - logits.gather(1, y[:, None]).squeeze(1)


def _estimate_squared_mean(slopes: Tensor) -> Tensor:
    """Return an unbiased estimate of the squared mean: the product of the means of two disjoint halves."""
    if len(slopes) < 2:
        return slopes.new_zeros(())  # a single sample has no second half
    return slopes[::2].mean() * slopes[1::2].mean()
