"""MAT: adversarial training with a convex combination of k perturbations per domain (the paper's Algorithm 1)."""

from dataclasses import dataclass
from typing import Any, Literal

from domainwise.algorithms.adversarial import PAPER, RELEASED, AdversarialAlgorithm, AdversarialHparams
from domainwise.hparams import Choice, hparam
from domainwise.perturbations import MultiplePerturbation


@dataclass(frozen=True)
class MATHparams(AdversarialHparams):
    VARIANTS = {
        "paper": PAPER,
        "released": {**RELEASED, "weights": "sample", "normalized_over": "stack", "start": "unprojected"},
    }

    count: int = hparam(10, help="Perturbations per domain (k in the paper).", search=Choice((5, 10, 15, 20)))
    weight_step_size: float = hparam(
        0.001, help="Size of the gradient step on the mixing logits (eta in the paper).", search=Choice((0.01, 0.001))
    )
    weights: Literal["domain", "sample"] = hparam(
        "domain", help="Mixing weights: learned per domain, or drawn per sample in every update (released code)."
    )
    normalized_over: Literal["perturbation", "stack"] = hparam(
        "perturbation", help="Normalize the step of each perturbation, or of a domain's stack (released code)."
    )
    start: Literal["projected", "unprojected"] = hparam(
        "projected", help="Gaussian start, projected onto the ball or unprojected (released code)."
    )


class MAT(AdversarialAlgorithm):
    """Multiple-perturbation adversarial training: the images of a domain share a learned mix of k perturbations."""

    source = "Wang et al. 2022"
    Hparams = MATHparams
    hparams: MATHparams
    perturbation: MultiplePerturbation

    @property
    def is_exact_over_ranks(self) -> bool:
        # Per-sample logits move by a raw gradient, which is that of the mean over the rank's own samples.
        return self.hparams.weights == "domain"

    def build_perturbation(self, shape: tuple[int, ...]) -> MultiplePerturbation:
        hparams = self.hparams
        return MultiplePerturbation(
            shape,
            count=hparams.count,
            weight_step_size=hparams.weight_step_size,
            weights=hparams.weights,
            normalized_over=hparams.normalized_over,
            start=hparams.start,
            **self.perturbation_settings(),
        )

    def describe(self) -> dict[str, Any]:
        description = super().describe()
        if self.perturbation.is_kept:
            description["perturbation"]["mixing_weights"] = self.perturbation.mixing_weights().tolist()
        return description
