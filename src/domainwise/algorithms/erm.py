"""ERM: the mean cross-entropy over the samples of all domains (Vapnik 1998)."""

from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm, Batches, concatenate_batches


class ERM(Algorithm):
    """Empirical risk minimization: all domains pooled, no perturbation. The baseline to beat."""

    source = "Vapnik 1998"

    @property
    def is_exact_over_ranks(self) -> bool:
        return True

    def update(self, batches: Batches) -> dict[str, float]:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        loss = F.cross_entropy(self.network(x), y)
        self.descend_(loss)
        return {"loss": loss.item()}
