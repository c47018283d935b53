"""MAT: adversarial training with k perturbations per domain (the paper's Algorithm 1)."""

from dataclasses import dataclass
from typing import Any, Literal

from domainwise.algorithms.adversarial import PAPER, RELEASED, STANDARD, AdversarialAlgorithm, AdversarialHparams
from domainwise.hparams import Choice, hparam
from domainwise.perturbations import MultiplePerturbation
from domainwise.perturbations.base import Ascent
from domainwise.perturbations.multiple import default_ascent


@dataclass(frozen=True)
class MATHparams(AdversarialHparams):
    VARIANTS = {
        "standard": {**STANDARD, "weights": "assigned"},
        "paper": PAPER,
        "released": {**RELEASED, "weights": "sample", "normalized_over": "stack", "start": "unprojected"},
    }

    count: int = hparam(10, help="Perturbations per domain (k in the paper).", search=Choice((5, 10, 15, 20)))
    weight_step_size: float = hparam(
        0.001, help="Size of the gradient step on the mixing logits (eta in the paper).", search=Choice((0.01, 0.001))
    )
    weights: Literal["assigned", "soft", "subspace", "domain", "sample"] = hparam(
        "domain",
        help="Perturbation of a sample: assigned, soft, subspace (by gradient), domain (paper) or sample (released).",
    )
    temperature: float = hparam(0.1, help="Temperature of the mixing weights with weights=soft.", above=0)
    memory: float = hparam(
        0.9, help="Weight of earlier batches in the gradient directions with weights=subspace.", low=0, high=1
    )
    normalized_over: Literal["perturbation", "stack"] = hparam(
        "perturbation", help="Normalize the step of each perturbation, or of a domain's stack (released code)."
    )
    start: Literal["projected", "unprojected"] = hparam(
        "projected", help="Gaussian start, projected onto the ball or unprojected (released code)."
    )

    def default_ascent(self) -> Ascent:
        return default_ascent(self.weights, self.norm)


class MAT(AdversarialAlgorithm):
    """Multiple-perturbation adversarial training: each image gets one of its domain's k perturbations, or a mix."""

    source = "Wang et al. 2022"
    Hparams = MATHparams
    hparams: MATHparams
    perturbation: MultiplePerturbation

    def build_perturbation(self, shape: tuple[int, ...]) -> MultiplePerturbation:
        hparams = self.hparams
        return MultiplePerturbation(
            shape,
            count=hparams.count,
            weight_step_size=hparams.weight_step_size,
            weights=hparams.weights,
            temperature=hparams.temperature,
            memory=hparams.memory,
            normalized_over=hparams.normalized_over,
            start=hparams.start,
            **self.perturbation_settings(),
        )

    def describe(self) -> dict[str, Any]:
        description = super().describe()
        if self.perturbation.is_kept:
            description["perturbation"]["mixing_weights"] = self.perturbation.mixing_weights().tolist()
        return description
