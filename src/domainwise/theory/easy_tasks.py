"""Definition B.1: what makes a task easy to learn, so that ERM has no excuse; checked for any given task."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from domainwise.theory.problem import Floats, Points


@dataclass(frozen=True)
class Constraint:
    """One line of Definition B.1, and whether a task satisfies it."""

    name: str
    holds: bool
    why: str


def easy_to_learn(domains: Sequence[Points]) -> list[Constraint]:
    """The five constraints of Definition B.1, checked for a task that is given by its domains.

    The third stands as the paper prints it (x_sp independent of x_inv), and as Nagarajan et al. have it (given y).
    """
    pooled = np.concatenate([points.x for points in domains])
    labels = np.concatenate([points.y for points in domains])
    sizes = sorted(set(np.abs(pooled[:, -1]).round(12)))
    distributions = [_distribution(points.invariant, points.weight) for points in domains]
    same = all(_alike(distributions[0], other) for other in distributions[1:])
    printed = all(_independent(points.invariant, points.spurious, points.weight) for points in domains)
    given_label = all(_class_is_independent(points, label) for points in domains for label in (1, -1))
    return [
        Constraint(
            "fully predictive invariant features",
            _separable(pooled[:, :-1], labels),
            "some w has y w . x_inv > 0 for every point",
        ),
        Constraint("identical invariant distribution", same, "p(x_inv) is the same in every domain"),
        Constraint("conditional independence, as printed", printed, "x_sp and x_inv are independent in every domain"),
        Constraint("conditional independence, given y", given_label, "they are independent within each class"),
        Constraint("two-valued spurious feature", len(sizes) == 1, f"|x_sp| takes the values {sizes}"),
        Constraint("identity mapping", True, "x is (x_inv, x_sp) itself, by construction"),
    ]


def _separable(x: Floats, y: Floats) -> bool:
    """Whether a linear classifier without offset makes no error: a linear program with nothing to minimize."""
    found = linprog(np.zeros(x.shape[1]), A_ub=-y[:, None] * x, b_ub=-np.ones(len(y)), bounds=(None, None))
    return bool(found.status == 0)


def _distribution(values: Floats, weight: Floats) -> dict[tuple[float, ...], float]:
    total: dict[tuple[float, ...], float] = {}
    for row, share in zip(values.round(12), weight / weight.sum(), strict=True):
        total[tuple(row)] = total.get(tuple(row), 0.0) + share
    return {key: share for key, share in total.items() if share > 0}


def _alike(first: dict[tuple[float, ...], float], second: dict[tuple[float, ...], float]) -> bool:
    keys = first.keys() | second.keys()
    return all(abs(first.get(key, 0.0) - second.get(key, 0.0)) < 1e-9 for key in keys)


def _class_is_independent(points: Points, label: int) -> bool:
    inside = points.y == label
    return _independent(points.invariant[inside], points.spurious[inside], points.weight[inside])


def _independent(x_inv: Floats, x_sp: Floats, weight: Floats) -> bool:
    keep = weight > 0
    x_inv, x_sp, weight = x_inv[keep], x_sp[keep], weight[keep]
    whole = _distribution(x_inv, weight)
    return all(_alike(whole, _distribution(x_inv[x_sp == v], weight[x_sp == v])) for v in set(x_sp))
