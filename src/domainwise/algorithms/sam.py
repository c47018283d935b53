"""SAM: minima that stay low when the weights move a little (Foret et al. 2020)."""

from dataclasses import dataclass

from domainwise.algorithms.erm import ERM
from domainwise.algorithms.sharpness import Sharpness
from domainwise.hparams import Choice, Hparams, hparam


@dataclass(frozen=True)
class SAMHparams(Hparams):
    radius: float = hparam(
        0.05,
        help="Radius in which the worst weights are sought (rho).",
        search=Choice((0.01, 0.02, 0.05, 0.1)),
        key="rho",
        low=0,
    )


class SAM(ERM):
    """Sharpness-aware minimization: each step uses the gradient at the worst weights nearby."""

    source = "Foret et al. 2020"
    Hparams = SAMHparams
    hparams: SAMHparams

    def setup(self) -> None:
        if self.sharpness is not None:
            raise ValueError("SAM is sharpness-aware already; leave out --sam and --sagm")
        self.sharpness = Sharpness(self.hparams.radius)
