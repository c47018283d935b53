"""UAT: adversarial training with one perturbation a domain (Moosavi-Dezfooli et al. 2017, as the paper adapts it)."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from domainwise.algorithms import adversarial
from domainwise.algorithms.adversarial import NormalizedSpace
from domainwise.algorithms.base import Algorithm, Batches
from domainwise.perturbations import UniversalPerturbation


@dataclass(frozen=True)
class UATHparams(adversarial.AdversarialHparams):
    """start, reduction: as for `UniversalPerturbation`; space: what `epsilon` is measured in."""

    VARIANTS = {
        "paper": adversarial.PAPER,
        "released": {**adversarial.RELEASED, "space": "normalized", "start": "unprojected", "reduction": "sum"},
    }

    start: Literal["projected", "unprojected"] = "projected"
    reduction: Literal["mean", "sum"] = "mean"
    space: Literal["pixels", "normalized"] = "pixels"


class UAT(Algorithm):
    """Universal adversarial training: all images of a domain share one perturbation, kept over updates."""

    source = "Moosavi-Dezfooli et al. 2017"
    Hparams = UATHparams
    hparams: UATHparams

    def __init__(self, network: nn.Module, *, num_domains: int, **settings: Any) -> None:
        super().__init__(network, num_domains=num_domains, **settings)
        shape = adversarial.image_shape(self)
        self.space = NormalizedSpace(shape) if self.hparams.space == "normalized" else None
        perturbation = UniversalPerturbation(
            shape,
            num_domains=num_domains,
            start=self.hparams.start,
            reduction=self.hparams.reduction,
            bounds=(0.0, 1.0) if self.space is None else self.space.bounds(),
            generator=self.generator,
            **self.hparams.geometry(),
        )
        self.perturbation = adversarial.checked(perturbation, self.hparams)
        # The sum over a share is a part of the sum over the batch, and a raw gradient shows it.
        self.is_exact_in_shares = self.hparams.reduction == "mean" or self.hparams.ascent != "gradient"

    def update(self, batches: Batches) -> dict[str, float]:
        return adversarial.update(self, self.hparams, self.perturbation, batches, space=self.space)

    def describe(self) -> dict[str, Any]:
        return {"perturbation": adversarial.describe(self.perturbation)}
