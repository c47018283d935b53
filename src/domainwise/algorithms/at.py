"""AT: adversarial training with one perturbation a sample (Madry et al. 2017)."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from domainwise.algorithms import adversarial
from domainwise.algorithms.adversarial import NormalizedSpace
from domainwise.algorithms.base import Algorithm, Batches
from domainwise.hparams import bounded
from domainwise.perturbations import SampleWisePerturbation


@dataclass(frozen=True)
class ATHparams(adversarial.AdversarialHparams):
    """start, over: as for `SampleWisePerturbation`; steps: of ascent, 1 is FGSM and 10 PGD; space: of `epsilon`."""

    VARIANTS = {
        "paper": adversarial.PAPER,
        "released": {
            **adversarial.RELEASED,
            "loss_cap": None,
            "space": "normalized",
            "steps": 10,
            "start": "cube",
            "over": "domain",
        },
    }

    steps: int = bounded(1, low=1)
    start: Literal["random", "zero", "cube"] = "random"
    over: Literal["sample", "domain"] = "sample"
    space: Literal["pixels", "normalized"] = "pixels"


class AT(Algorithm):
    """Sample-wise adversarial training: every image gets a perturbation of its own, made anew each update."""

    source = "Madry et al. 2017"
    Hparams = ATHparams
    hparams: ATHparams

    def __init__(self, network: nn.Module, *, num_domains: int, **settings: Any) -> None:
        super().__init__(network, num_domains=num_domains, **settings)
        shape = adversarial.image_shape(self)
        self.space = NormalizedSpace(shape) if self.hparams.space == "normalized" else None
        perturbation = SampleWisePerturbation(
            shape,
            num_domains=num_domains,
            start=self.hparams.start,
            over=self.hparams.over,
            bounds=(0.0, 1.0) if self.space is None else self.space.bounds(),
            generator=self.generator,
            **self.hparams.geometry(),
        )
        self.perturbation = adversarial.checked(perturbation, self.hparams)
        # A raw gradient is that of the share's mean, and so longer the smaller the share.
        self.is_exact_in_shares = self.hparams.over == "sample" and self.hparams.ascent != "gradient"

    def update(self, batches: Batches) -> dict[str, float]:
        steps, space = self.hparams.steps, self.space
        return adversarial.update(self, self.hparams, self.perturbation, batches, steps=steps, space=space)
