"""CausIRL with CORAL: random mixes of the domains have the same mean and covariance (Chevalley et al. 2022)."""

from torch import Tensor

from domainwise.algorithms.coral import CORAL
from domainwise.algorithms.penalties import compute_mix_distance


class CausIRLCORAL(CORAL):
    """Causal invariance with CORAL: a penalty on differences between two random mixes of all domains."""

    source = "Chevalley et al. 2022"

    def compute_distance(self, features: Tensor, sizes: list[int]) -> Tensor:
        return compute_mix_distance(super().compute_distance, features, sizes, self.generator)
