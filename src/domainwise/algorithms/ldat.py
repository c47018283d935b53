"""LDAT: adversarial training with one low-rank perturbation per domain (the paper's Algorithm 2)."""

from dataclasses import dataclass
from typing import Literal

from domainwise.algorithms.adversarial import PAPER, RELEASED, STANDARD, AdversarialAlgorithm, AdversarialHparams
from domainwise.hparams import Choice, hparam
from domainwise.perturbations import LowRankPerturbation


@dataclass(frozen=True)
class LDATHparams(AdversarialHparams):
    VARIANTS = {
        "standard": {**STANDARD, "solver": "projected", "rank": 10},
        "paper": PAPER,
        "released": {**RELEASED, "step_scale": 0.1},
    }

    step_size: float | None = hparam(
        0.1, help="Length of one ascent step, on each factor with solver=factors (rho in the paper); none: the radius."
    )
    step_scale: float = hparam(1.0, help="Factor on step_size (gamma in the released code).")
    solver: Literal["projected", "factors"] = hparam(
        "factors",
        help="projected ascends on the image and projects it to low rank; factors ascends on two factors (paper).",
    )
    rank: int = hparam(10, help="Maximum rank of a perturbation (l in the paper).", search=Choice((5, 10, 15, 20)))


class LDAT(AdversarialAlgorithm):
    """Low-rank decomposed adversarial training: the images of a domain share one perturbation of rank at most l."""

    source = "Wang et al. 2022"
    Hparams = LDATHparams
    hparams: LDATHparams

    def build_perturbation(self, shape: tuple[int, ...]) -> LowRankPerturbation:
        settings = self.perturbation_settings()
        if settings["step_size"] is not None:
            settings["step_size"] *= self.hparams.step_scale
        elif self.hparams.step_scale != 1:
            raise ValueError("step_scale needs a step_size")
        return LowRankPerturbation(shape, rank=self.hparams.rank, solver=self.hparams.solver, **settings)
