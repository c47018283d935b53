"""UAT: adversarial training with one perturbation per domain (Moosavi-Dezfooli et al. 2017, adapted by the paper)."""

from dataclasses import dataclass
from typing import Literal

from domainwise.algorithms.adversarial import PAPER, RELEASED, STANDARD, AdversarialAlgorithm, AdversarialHparams
from domainwise.hparams import hparam
from domainwise.perturbations import UniversalPerturbation


@dataclass(frozen=True)
class UATHparams(AdversarialHparams):
    VARIANTS = {
        "standard": STANDARD,
        "paper": PAPER,
        "released": {**RELEASED, "space": "normalized", "start": "unprojected", "reduction": "sum"},
    }

    start: Literal["projected", "unprojected"] = hparam(
        "projected", help="Gaussian start, projected onto the ball or unprojected (released code)."
    )
    reduction: Literal["mean", "sum"] = hparam(
        "mean", help="Inner loss of a domain: mean or sum (released code) over its samples."
    )
    space: Literal["pixels", "normalized"] = hparam(
        "pixels", help="Space of the perturbation and epsilon: pixels, or ImageNet-normalized images (released code)."
    )


class UAT(AdversarialAlgorithm):
    """Universal adversarial training: all images of a domain share one perturbation, kept across updates."""

    source = "Moosavi-Dezfooli et al. 2017"
    Hparams = UATHparams
    hparams: UATHparams

    def build_perturbation(self, shape: tuple[int, ...]) -> UniversalPerturbation:
        return UniversalPerturbation(
            shape, start=self.hparams.start, reduction=self.hparams.reduction, **self.perturbation_settings()
        )
