"""MAT: adversarial training with a convex mix of k perturbations a domain (the paper's Algorithm 1)."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from domainwise.algorithms import adversarial
from domainwise.algorithms.base import Algorithm, Batches
from domainwise.hparams import Choice, searched
from domainwise.perturbations import MultiplePerturbation


@dataclass(frozen=True)
class MATHparams(adversarial.AdversarialHparams):
    """count (the paper's k), weight_step_size (eta), weights, normalized_over, start: as for `MultiplePerturbation`."""

    VARIANTS = {
        "paper": adversarial.PAPER,
        "released": {**adversarial.RELEASED, "weights": "sample", "normalized_over": "stack", "start": "unprojected"},
    }

    count: int = searched(10, Choice((5, 10, 15, 20)))
    weight_step_size: float = searched(0.001, Choice((0.01, 0.001)))
    weights: Literal["domain", "sample"] = "domain"
    normalized_over: Literal["perturbation", "stack"] = "perturbation"
    start: Literal["projected", "unprojected"] = "projected"


class MAT(Algorithm):
    """Multiple-perturbation adversarial training: a domain's images share a learned mix of k perturbations."""

    source = "Wang et al. 2022"
    Hparams = MATHparams
    hparams: MATHparams

    def __init__(self, network: nn.Module, *, num_domains: int, **settings: Any) -> None:
        super().__init__(network, num_domains=num_domains, **settings)
        self.perturbation = MultiplePerturbation(
            adversarial.image_shape(self),
            num_domains=num_domains,
            count=self.hparams.count,
            weight_step_size=self.hparams.weight_step_size,
            weights=self.hparams.weights,
            normalized_over=self.hparams.normalized_over,
            start=self.hparams.start,
            generator=self.generator,
            **self.hparams.geometry(),
        )
        adversarial.checked(self.perturbation, self.hparams)
        # A sample's own logits move by a raw gradient, that of its share's mean.
        self.is_exact_in_shares = self.hparams.weights == "domain"

    def update(self, batches: Batches) -> dict[str, float]:
        return adversarial.update(self, self.hparams, self.perturbation, batches)

    def describe(self) -> dict[str, Any]:
        described = adversarial.describe(self.perturbation)
        if self.perturbation.is_kept:
            described["mixing_weights"] = self.perturbation.mixing_weights().tolist()
        return {"perturbation": described}
