"""ERM: the mean cross-entropy over all domains' samples (Vapnik 1998)."""

from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm, Batches, joined


class ERM(Algorithm):
    """Empirical risk minimization: all domains pooled, no perturbation. The baseline to beat."""

    source = "Vapnik 1998"
    is_exact_in_shares = True

    def update(self, batches: Batches) -> dict[str, float]:
        x, y, _ = joined(batches, self.num_domains)
        loss = F.cross_entropy(self.network(x), y)
        self.descend_(loss)
        return {"loss": loss.item()}
