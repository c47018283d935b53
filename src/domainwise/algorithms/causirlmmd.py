"""CausIRL with MMD: random mixes of the domains have the same distribution (Chevalley et al. 2022)."""

from torch import Tensor

from domainwise.algorithms.mmd import MMD
from domainwise.algorithms.penalties import compute_mix_distance


class CausIRLMMD(MMD):
    """Causal invariance with MMD: a penalty on the kernel distance between two random mixes of all domains."""

    source = "Chevalley et al. 2022"

    def compute_distance(self, features: Tensor, sizes: list[int]) -> Tensor:
        return compute_mix_distance(super().compute_distance, features, sizes, self.generator)
