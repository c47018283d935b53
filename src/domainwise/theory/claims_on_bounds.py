"""Claims about the bound of Theorem 4.1, held against its exact derivative and the flow that it should bound."""

from collections.abc import Iterator

import numpy as np
from scipy.optimize import brentq

from domainwise.theory import bounds
from domainwise.theory.bounds import Shift
from domainwise.theory.dynamics import flow
from domainwise.theory.finding import BETAS, MARGINS, Finding
from domainwise.theory.problem import Task


def printed_condition() -> Finding:
    shift = Shift(0.9, label=-1)
    step = 1e-4
    measured = (_inside(0.5 + step, shift) - _inside(0.5 - step, shift)) / (2 * step) * (shift.c2 + 0.5) ** 2
    ours, printed = bounds.least_slope(shift), bounds.printed_least_slope(shift)
    return Finding(
        "the least slope of the bound is 2 eps c1 + c2 + 3/4 + 3/2 eps (Theorem 4.1)",
        "holds" if abs(measured - printed) < abs(measured - ours) else "fails",
        f"it is 2 eps c1 + c2 + 1/2 + eps: for delta y = -.9, beta = M = 1 finite differences give {measured:.3f}, "
        f"this {ours:.3f}, the printed one {printed:.3f}",
    )


def _inside(p: float, shift: Shift) -> float:
    """What the logarithm of the bound is taken of."""
    return float((shift.c1 + p) / (shift.c2 + bounds.spread(p, shift.epsilon)))


def first_falling(label: int, beta: float, max_margin: float) -> float | None:
    """The delta y / beta nearest to 0, below it, at which the bound stops being monotone in p."""

    def slope(ratio: float) -> float:
        return bounds.least_slope(Shift(ratio * beta * label, label, beta, max_margin))

    # With y = 1 the shift itself is below 0 and must leave 2 M (1 + delta) above 1.
    most = -0.999 if label == -1 else max(-0.999, (1 / (2 * max_margin) - 1) / beta + 1e-6)
    return float(brentq(slope, most, 0.0)) if slope(most) < 0 else None


def condition_is_near_zero() -> Finding:
    found = [first_falling(label, beta, margin) for label in (1, -1) for beta in BETAS for margin in MARGINS]
    there = [ratio for ratio in found if ratio is not None]
    return Finding(
        "the bound stops growing with p for delta y / beta close to 0",
        "holds" if max(there) > -0.1 else "fails",
        f"only for delta y below {max(there):.3f} beta, over M from {MARGINS[0]:g} to {MARGINS[-1]:g} and beta from "
        f"{BETAS[0]:g} to {BETAS[-1]:g}; for large M the limit is the root of ((1+x)/(1-x))^((1+x)/2) + x, "
        f"{limit_of_condition():.4f}",
    )


def limit_of_condition() -> float:
    return float(brentq(lambda x: ((1 + x) / (1 - x)) ** ((1 + x) / 2) + x, -0.99, -0.1))


def falling_stretch(shift: Shift) -> tuple[float, float]:
    """Up to which p the bound falls, and from which p on its proof applies (w_0 above 0)."""
    until = brentq(lambda p: float(bounds.slope_sign(p, shift)), 0.5, 1 - 1e-12)
    return float(until), (shift.beta - shift.d) / (2 * shift.beta)


def falling_bound_is_a_bound() -> Finding:
    shifts = [
        Shift(ratio * beta, -1, beta, margin)
        for ratio in (0.82, 0.85, 0.9, 0.95, 0.99)
        for beta in BETAS
        for margin in MARGINS
    ]
    stretches = [falling_stretch(shift) for shift in shifts if bounds.least_slope(shift) < 0]
    apart = all(until < valid for until, valid in stretches)
    example, p = Shift(0.9, label=-1), 0.55
    points = Task(p).population()
    weight = flow(points.moved(example.d * points.y), [1e8])[0, -1]
    return Finding(
        "where the bound falls with p it bounds w_sp from below",
        "fails" if apart else "depends",
        f"the proof needs w_0 > 0, so p > (1 - delta y / beta) / 2; in all {len(stretches)} cases tried the bound "
        f"falls only below that p. Example: delta y = -.9, p = .55: bound {bounds.lower_weight(p, example):.2f}, "
        f"w_sp {weight:.2f}",
    )


def averaged_bound_is_not_monotone() -> Finding:
    p = np.linspace(0.5, 0.9999, 400)
    tried, falling = 0, 0
    for delta, beta, margin in _averaged_cases():
        for opposed in (0.5, p):  # classes alike, or delta against each domain's majority, as the adversary sets it
            tried += 1
            bound = bounds.averaged_lower_weight(p, delta, opposed, beta, margin)
            falling += bool(np.any(np.diff(bound) < 0))
    return Finding(
        "averaged over y, as the theorem states it, the bound stops growing with p somewhere",
        "fails" if falling == 0 else "depends",
        f"a domain's delta meets both labels, so delta y takes both signs: monotone in {tried - falling} of {tried} "
        "cases of delta, beta and M, with the classes weighed alike or by their share in a domain",
    )


def _averaged_cases() -> Iterator[tuple[float, float, float]]:
    for ratio in (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99):
        for beta in BETAS:
            for margin in MARGINS:
                yield ratio * beta, beta, margin
