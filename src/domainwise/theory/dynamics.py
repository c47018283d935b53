"""Gradient flow of a linear classifier on the exponential loss, from the origin, under four kinds of adversary.

With a_i = weight_i exp(-y_i w . x_i), u = radius |w|, and A_e, B_e the sums of a_i over a domain's two classes:

    none          sum_i a_i                                              ERM
    fixed         the same on translated points                          as the paper's proof treats delta
    sample-wise   exp(u) sum_i a_i                                       each point moved against its own margin
    domain-wise   sum_e (A_e + B_e) cosh(u) + |A_e - B_e| sinh(u)        one delta per domain, the exact inner maximum

The last line is the exact maximum over a ball: moving a whole domain by delta multiplies one class's loss by
exp(-w . delta) and the other's by exp(w . delta), so only w . delta matters, and the maximum is at one of its ends.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from scipy.integrate import solve_ivp

from domainwise.theory.problem import Floats, Points

Adversary = Literal["none", "sample", "domain"]
# |A - B| has a corner where the classes' losses are equal, and the flow then runs along it. Rounding the corner by this
# size, relative to the domain's loss, lets an ODE solver follow it.
CORNER = 1e-7


def solve_flow(
    points: Points, times: Sequence[float] | Floats, adversary: Adversary = "none", radius: float = 0.0
) -> Floats:
    """Return the weights (len(times), d + 1) of the gradient flow from the origin at increasing times >= 0."""
    times = np.asarray(times, dtype=float)
    direction = build_direction(points, adversary, radius)

    # The weights grow like ln t, so they are nearly linear in s = ln(1 + t).
    def slope(s: float, w: Floats) -> Floats:
        return np.asarray(np.exp(s) * direction(w))

    at = np.log1p(times)
    solved = solve_ivp(
        slope, (0.0, float(at[-1])), np.zeros(points.x.shape[1]), "LSODA", t_eval=at, rtol=1e-9, atol=1e-11
    )
    if not solved.success:
        raise RuntimeError(f"the gradient flow could not be solved: {solved.message}")
    return np.asarray(solved.y.T)


def descend(points: Points, time: float, steps: int, adversary: Adversary = "none", radius: float = 0.0) -> Floats:
    """Return the weights after `steps` steps of gradient descent, without rounding the corner of the maximum."""
    direction = build_direction(points, adversary, radius, corner=0.0)
    w = np.zeros(points.x.shape[1])
    for _ in range(steps):
        w = w + time / steps * direction(w)
    return w


def build_direction(
    points: Points, adversary: Adversary, radius: float, corner: float = CORNER
) -> Callable[[Floats], Floats]:
    """Return the function from weights to the negative gradient of the loss under the adversary."""
    pull = points.y[:, None] * points.x
    inside = points.domain == np.unique(points.domain)[:, None]
    signed = inside * points.y

    def direction(w: Floats) -> Floats:
        each = points.weight * np.exp(-(pull @ w))
        clean = each @ pull
        if adversary == "none" or radius == 0:
            return np.asarray(clean)
        length = np.sqrt(w @ w)
        unit = w / length if length > 0 else np.zeros_like(w)
        u = radius * length
        if adversary == "sample":
            return np.asarray(np.exp(u) * (clean - radius * unit * each.sum()))
        # One row per domain.
        loss, gap = inside @ each, signed @ each
        size = np.sqrt(gap**2 + (corner * loss) ** 2)
        sign = np.divide(gap, size, out=np.zeros_like(gap), where=size > 0)
        total = np.cosh(u) * clean + np.sinh(u) * (sign @ signed * each @ pull)
        return np.asarray(total - radius * unit * (loss.sum() * np.sinh(u) + size.sum() * np.cosh(u)))

    return direction


def compute_reliance(weights: Floats, beta: float, margin: float = 1.0) -> Floats:
    """Return w_sp beta / |w_inv x_inv|, the reliance on the spurious feature at a point of this margin."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(weights[..., -1] * beta / np.abs(weights[..., 0] * margin))
