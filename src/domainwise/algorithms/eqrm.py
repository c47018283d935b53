"""EQRM: a high quantile of the domains' losses (Eastwood et al. 2022, Algorithm 1)."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import Batches, LossAlgorithm, Objective, concatenate_batches, mean_per_domain
from domainwise.hparams import Hparams, Power, Uniform, hparam

_BISECTIONS = 32


@dataclass(frozen=True)
class EQRMHparams(Hparams):
    variant: Literal["paper", "domainbed"] = hparam(
        "paper",
        help="paper: the quantile's own derivative; domainbed: that of the bisection which finds it (see the card).",
    )
    quantile: float = hparam(
        0.75,
        help="Which quantile of the domains' losses is minimized (alpha).",
        search=Uniform(0.5, 0.99),
        key="eqrm_quantile",
        above=0,
        high=0.9999,
    )
    burn_in_steps: float = hparam(
        2500.0,
        help="Updates that minimize the mean of the domains' losses first.",
        search=Power(10, 2.5, 3.5),
        key="eqrm_burnin_iters",
        low=0,
    )
    quantile_lr: float = hparam(
        1e-6, help="Learning rate after burn_in_steps updates.", search=Power(10, -7, -5), key="eqrm_lr", low=0
    )


class EQRM(LossAlgorithm):
    """Empirical quantile risk minimization: a high quantile of the domains' losses, estimated from their density."""

    group = "invariance"
    source = "Eastwood et al. 2022"
    min_domains = 2
    Hparams = EQRMHparams
    hparams: EQRMHparams

    def begin_update_(self) -> None:
        burn_in = self.hparams.burn_in_steps
        # DomainBed draws a fractional number of steps, which no number of updates is equal to.
        if self.updates == (math.ceil(burn_in) if self.hparams.variant == "paper" else burn_in):
            self.optimizer = self.build_optimizer(self.network.parameters(), lr=self.hparams.quantile_lr)

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        losses = mean_per_domain(F.cross_entropy(self.network(x), y, reduction="none"), batches)
        loss = losses.mean()
        quantile_loss = estimate_quantile(
            losses, self.hparams.quantile, is_derivative_exact=self.hparams.variant == "paper"
        )
        objective = loss if self.updates < self.hparams.burn_in_steps else quantile_loss
        return objective, {"loss": loss, "quantile_loss": quantile_loss}


def estimate_quantile(values: Tensor, level: float, *, is_derivative_exact: bool = True) -> Tensor:
    """Return the quantile of a Gaussian kernel density estimate of the values, (m,), with bandwidth 1.06 std m^(-1/5).

    Args:
        level: Share of the density below the quantile.
        is_derivative_exact: Differentiate the quantile itself. Otherwise its place between bounds that depend on the
            smallest and the largest value is taken as constant, and only these two and the bandwidth get a gradient.
    """
    # A few numbers, on which single precision would end the bisection early.
    values = values.to("cpu", torch.float64)
    bandwidth = 1.06 * values.std() * len(values) ** -0.2 if len(values) > 1 else values.new_zeros(())
    if not bandwidth:
        return values.mean()  # equal values are their own quantile
    shift = NormalDist().inv_cdf(level) * bandwidth
    low, high = values.min() + shift, values.max() + shift
    quantile = low + _bisect(values, low, high, bandwidth, level) * (high - low)
    if not is_derivative_exact:
        return quantile
    # A Newton step from a constant has the derivative that the implicit function theorem gives: -dF / density.
    root = quantile.detach()
    scores = (root - values) / bandwidth
    density = (-scores.square() / 2).exp().mean() / (math.sqrt(2 * math.pi) * bandwidth)
    excess: Tensor = torch.special.ndtr(scores).mean() - level
    return root - excess / density.detach()


def _bisect(values: Tensor, low: Tensor, high: Tensor, bandwidth: Tensor, level: float) -> float:
    """Return where the quantile is between `low` (0) and `high` (1)."""
    centres, start, end, normal = values.tolist(), low.item(), high.item(), NormalDist(0, bandwidth.item())
    left, right = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (left + right) / 2
        point = start + middle * (end - start)
        if sum(normal.cdf(point - centre) for centre in centres) / len(centres) > level:
            right = middle
        else:
            left = middle
    return (left + right) / 2
