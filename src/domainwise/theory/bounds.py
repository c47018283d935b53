"""The bounds of Theorem 4.1 and of Nagarajan et al.'s Theorem 2, with explicit constants.

From the proof of Theorem 4.1, for a shift delta of both features, d = delta y and epsilon = d / (2 beta):

    w_sp(t) >= ln[(c_1 + p) / (c_2 + h(p))] / (beta + d),     h(p) = p^(1/2 - epsilon) (1 - p)^(1/2 + epsilon)
    w_sp(t) <  w_0 = ln[p (beta + d) / ((1 - p) (beta - d))] / (2 beta)

Theorem 2 is the case delta = 0. Omega and O hide the constants of 0.5 ln(1 + t) <= |w_inv x_inv| <= 2 M ln(1 + t),
which are explicit here.
"""

from dataclasses import dataclass

import numpy as np

from domainwise.errors import DomainwiseError
from domainwise.theory.problem import Floats

Numbers = Floats | float


@dataclass(frozen=True)
class Shift:
    """Everything the bound depends on besides p.

    Args:
        delta: the shift that the proof adds to both features.
        label: y. A domain-wise shift applies to both labels, so d = delta y takes both signs.
        beta: size of the spurious feature.
        max_margin: M, at least 1.
    """

    delta: float
    label: int = 1
    beta: float = 1.0
    max_margin: float = 1.0

    def __post_init__(self) -> None:
        if abs(self.delta) >= self.beta:
            raise DomainwiseError(f"the proof assumes |delta| < beta, not delta {self.delta:g} and beta {self.beta:g}")
        if self.exponent <= 1:
            raise DomainwiseError(
                f"the proof assumes 2 M (1 + delta) > 1 for its integral to converge, got {self.exponent:g}"
            )

    @property
    def d(self) -> float:
        return self.delta * self.label

    @property
    def epsilon(self) -> float:
        return self.d / (2 * self.beta)

    @property
    def exponent(self) -> float:
        return 2 * self.max_margin * (1 + self.delta)

    @property
    def c1(self) -> float:
        return 2 * (self.exponent - 1) / (self.beta + self.d) ** 2

    @property
    def c2(self) -> float:
        above, below = self.beta + self.d, self.beta - self.d
        return 2 * (self.exponent - 1) / float(above ** (1.5 - self.epsilon) * below ** (0.5 + self.epsilon))


def compute_h(p: Numbers, epsilon: float) -> Floats:
    """Return h(p)."""
    p = np.asarray(p, dtype=float)
    return np.asarray(p ** (0.5 - epsilon) * (1 - p) ** (0.5 + epsilon))


def compute_lower_bound(p: Numbers, shift: Shift) -> Floats:
    """Return the proof's lower bound on w_sp for large t."""
    return np.asarray(np.log((shift.c1 + p) / (shift.c2 + compute_h(p, shift.epsilon))) / (shift.beta + shift.d))


def compute_upper_bound(p: Numbers, shift: Shift) -> Floats:
    """Return w_0, the limit of the spurious weight under a shift by d along every point's label."""
    p = np.asarray(p, dtype=float)
    odds = p / (1 - p) * (shift.beta + shift.d) / (shift.beta - shift.d)
    return np.asarray(np.log(odds) / (2 * shift.beta))


def compute_averaged_lower_bound(
    p: Numbers, delta: float, opposed: Numbers = 0.5, beta: float = 1.0, max_margin: float = 1.0
) -> Floats:
    """Return the lower bound averaged over y, as the theorem states it; a share `opposed` of points has delta y < 0."""
    against, along = (compute_lower_bound(p, Shift(delta, label, beta, max_margin)) for label in (-1, 1))
    return np.asarray(along + opposed * (against - along))


def compute_slope(p: Numbers, shift: Shift) -> Floats:
    """Return the numerator of d/dp (c_1 + p) / (c_2 + h(p)), which has the sign of that derivative."""
    p = np.asarray(p, dtype=float)
    h = compute_h(p, shift.epsilon)
    slope = h * ((0.5 - shift.epsilon) / p - (0.5 + shift.epsilon) / (1 - p))
    return np.asarray(shift.c2 + h - (shift.c1 + p) * slope)


def compute_least_slope(shift: Shift) -> float:
    """Return the minimum of the slope over p in [1/2, 1), at p = 1/2; if negative, the bound is not monotone."""
    return shift.c2 + 0.5 + shift.epsilon + 2 * shift.epsilon * shift.c1


def compute_printed_least_slope(shift: Shift) -> float:
    """Return the least slope as the paper prints it."""
    return 2 * shift.epsilon * shift.c1 + shift.c2 + 0.75 + 1.5 * shift.epsilon


def compute_reliance_bounds(p: float, time: Numbers, shift: Shift) -> tuple[Floats, Floats]:
    """Return lower and upper bounds on w_sp beta / |w_inv x_inv| at large times, constants included."""
    log = np.log1p(time)
    low = shift.beta * compute_lower_bound(p, shift) / (2 * shift.max_margin * log)
    high = shift.beta * compute_upper_bound(p, shift) / (0.5 * log)
    return np.asarray(low), np.asarray(high)
