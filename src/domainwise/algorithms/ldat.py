"""LDAT: adversarial training with a perturbation of low rank a domain (the paper's Algorithm 2)."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from domainwise.algorithms import adversarial
from domainwise.algorithms.base import Algorithm, Batches
from domainwise.hparams import Choice, searched
from domainwise.perturbations import LowRankPerturbation


@dataclass(frozen=True)
class LDATHparams(adversarial.AdversarialHparams):
    """rank: the paper's l; step_size: of both factors, its rho; step_scale: times that, the released code's gamma."""

    VARIANTS = {"paper": adversarial.PAPER, "released": {**adversarial.RELEASED, "step_scale": 0.1}}

    step_size: float = searched(0.1, Choice((0.1, 0.01)))
    step_scale: float = 1.0
    rank: int = searched(10, Choice((5, 10, 15, 20)))


class LDAT(Algorithm):
    """Low-rank decomposed adversarial training: a domain's images share one perturbation of rank at most l."""

    source = "Wang et al. 2022"
    is_exact_in_shares = True
    Hparams = LDATHparams
    hparams: LDATHparams

    def __init__(self, network: nn.Module, *, num_domains: int, **settings: Any) -> None:
        super().__init__(network, num_domains=num_domains, **settings)
        geometry = self.hparams.geometry()
        geometry["step_size"] *= self.hparams.step_scale
        perturbation = LowRankPerturbation(
            adversarial.image_shape(self),
            num_domains=num_domains,
            rank=self.hparams.rank,
            generator=self.generator,
            **geometry,
        )
        self.perturbation = adversarial.checked(perturbation, self.hparams)

    def update(self, batches: Batches) -> dict[str, float]:
        return adversarial.update(self, self.hparams, self.perturbation, batches)

    def describe(self) -> dict[str, Any]:
        return {"perturbation": adversarial.describe(self.perturbation)}
