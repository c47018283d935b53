"""ERM: the mean cross-entropy over the samples of all domains (Vapnik 1998)."""

from torch.nn import functional as F

from domainwise.algorithms.base import Batches, LossAlgorithm, Objective, concatenate_batches


class ERM(LossAlgorithm):
    """Empirical risk minimization: all domains pooled, no perturbation. The baseline to beat."""

    group = "optimization"
    source = "Vapnik 1998"

    @property
    def is_exact_over_ranks(self) -> bool:
        return True

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        loss = F.cross_entropy(self.network(x), y)
        return loss, {"loss": loss}
