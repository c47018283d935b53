"""Adversarial perturbations with structure: a sample's, a domain's, a mix of several, or of low rank.

They need torch alone and fit any training loop:

    x_adv = perturbation.attack(x, domain, lambda x: F.cross_entropy(model(x), y, reduction="none"))
"""

from domainwise.perturbations.base import Perturbation
from domainwise.perturbations.low_rank import LowRankPerturbation
from domainwise.perturbations.multiple import MultiplePerturbation
from domainwise.perturbations.sample_wise import SampleWisePerturbation
from domainwise.perturbations.universal import UniversalPerturbation

__all__ = [
    "LowRankPerturbation",
    "MultiplePerturbation",
    "Perturbation",
    "SampleWisePerturbation",
    "UniversalPerturbation",
]
