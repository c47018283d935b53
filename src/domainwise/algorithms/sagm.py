"""SAGM: flat minima by gradients that agree before and after a climb (Wang et al. 2023)."""

from dataclasses import dataclass

from domainwise.algorithms.erm import ERM
from domainwise.algorithms.sharpness import Sharpness
from domainwise.hparams import Hparams, hparam


@dataclass(frozen=True)
class SAGMHparams(Hparams):
    radius: float = hparam(0.05, help="Radius in which the worst weights are sought (rho).", low=0)
    alignment: float = hparam(
        0.001,
        help="Strength of the gradient matching (alpha); the authors use 0.0005 for OfficeHome and DomainNet.",
        low=0,
    )


class SAGM(ERM):
    """Sharpness-aware gradient matching: the mean of the gradients at the weights and at worse ones nearby."""

    source = "Wang et al. 2023"
    Hparams = SAGMHparams
    hparams: SAGMHparams

    def setup(self) -> None:
        if self.sharpness is not None:
            raise ValueError("SAGM is sharpness-aware already; leave out --sam and --sagm")
        self.sharpness = Sharpness(self.hparams.radius, self.hparams.alignment)
