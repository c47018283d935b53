"""AT: adversarial training with one perturbation per sample (Madry et al. 2017)."""

from dataclasses import dataclass
from typing import Any, Literal

from domainwise.algorithms.adversarial import PAPER, RELEASED, STANDARD, AdversarialAlgorithm, AdversarialHparams
from domainwise.hparams import hparam
from domainwise.perturbations import SampleWisePerturbation


@dataclass(frozen=True)
class ATHparams(AdversarialHparams):
    VARIANTS = {
        # A dataset's default rank is meant for LDAT.
        "standard": {**STANDARD, "rank": None},
        "paper": {**PAPER, "rank": None},
        "released": {
            **RELEASED,
            "loss_cap": None,
            "space": "normalized",
            "steps": 10,
            "start": "cube",
            "over": "domain",
            "rank": None,
        },
    }

    steps: int = hparam(1, help="Ascent steps per attack: 1 as in FGSM, 10 as in PGD.", low=1)
    start: Literal["random", "zero", "cube"] = hparam(
        "random", help="Start: uniform in the ball, zero, or uniform in the cube (released code)."
    )
    over: Literal["sample", "domain"] = hparam(
        "sample", help="Take norms per sample, or over all samples of a domain in the batch (released code)."
    )
    rank: int | None = hparam(None, help="Maximum rank of a perturbation in each channel; none: no limit.", low=1)
    space: Literal["pixels", "normalized"] = hparam(
        "pixels", help="Space of the perturbation and epsilon: pixels, or ImageNet-normalized images (released code)."
    )


class AT(AdversarialAlgorithm):
    """Sample-wise adversarial training: each image gets its own perturbation, recomputed in every update."""

    source = "Madry et al. 2017"
    Hparams = ATHparams
    hparams: ATHparams

    @property
    def is_exact_over_ranks(self) -> bool:
        return self.hparams.over == "sample" and super().is_exact_over_ranks

    @property
    def attack_steps(self) -> int:
        return self.hparams.steps

    def build_perturbation(self, shape: tuple[int, ...]) -> SampleWisePerturbation:
        hparams = self.hparams
        return SampleWisePerturbation(
            shape, start=hparams.start, over=hparams.over, rank=hparams.rank, **self.perturbation_settings()
        )

    def describe(self) -> dict[str, Any]:
        return {}
