"""Structured adversarial perturbations: per sample, per domain, mixtures of several, or of low rank.

They depend on torch only and fit into any training loop:

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
