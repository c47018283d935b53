"""Structured adversarial perturbations: per sample, per domain, several per domain, or of low rank.

Each of them may change pixels, filters, tone, frequencies or features (a prior), chosen by gradients, as the worst of
several draws, or at random.

They depend on torch only and fit into any training loop:

    x_adv = perturbation.attack(x, domain, lambda x: F.cross_entropy(model(x), y, reduction="none"))
"""

from typing import TYPE_CHECKING

from domainwise.lazy import export_lazily

if TYPE_CHECKING:
    from domainwise.perturbations.base import Perturbation
    from domainwise.perturbations.low_rank import LowRankPerturbation
    from domainwise.perturbations.multiple import MultiplePerturbation
    from domainwise.perturbations.priors import FeaturePrior, FilterPrior, PixelPrior, Prior, SpectrumPrior, TonePrior
    from domainwise.perturbations.sample_wise import SampleWisePerturbation
    from domainwise.perturbations.universal import UniversalPerturbation

__all__ = [
    "FeaturePrior",
    "FilterPrior",
    "LowRankPerturbation",
    "MultiplePerturbation",
    "Perturbation",
    "PixelPrior",
    "Prior",
    "SampleWisePerturbation",
    "SpectrumPrior",
    "TonePrior",
    "UniversalPerturbation",
]

__getattr__ = export_lazily(
    __name__,
    {
        "FeaturePrior": "priors",
        "FilterPrior": "priors",
        "LowRankPerturbation": "low_rank",
        "MultiplePerturbation": "multiple",
        "Perturbation": "base",
        "PixelPrior": "priors",
        "Prior": "priors",
        "SampleWisePerturbation": "sample_wise",
        "SpectrumPrior": "priors",
        "TonePrior": "priors",
        "UniversalPerturbation": "universal",
    },
)
