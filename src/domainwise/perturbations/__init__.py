"""Structured adversarial perturbations: per sample, per domain, several per domain, or of low rank.

They depend on torch only and fit into any training loop:

    x_adv = perturbation.attack(x, domain, lambda x: F.cross_entropy(model(x), y, reduction="none"))
"""

from typing import TYPE_CHECKING

from domainwise.lazy import export_lazily

if TYPE_CHECKING:
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

__getattr__ = export_lazily(
    __name__,
    {
        "LowRankPerturbation": "low_rank",
        "MultiplePerturbation": "multiple",
        "Perturbation": "base",
        "SampleWisePerturbation": "sample_wise",
        "UniversalPerturbation": "universal",
    },
)
