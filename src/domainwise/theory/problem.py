"""The two-feature problem: an invariant feature that tells the label, a spurious one that agrees with it mostly.

The paper's section 4.3: x_inv = y, and x_sp = y beta with probability p, otherwise -y beta. Cows and camels (y = 1, -1)
on grass and desert (x_sp = beta, -beta); each ground is a training domain, in which one animal is more frequent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from domainwise.errors import DomainwiseError

Floats = NDArray[np.float64]
GRASS, DESERT = 0, 1


@dataclass(frozen=True)
class Points:
    """Weighted points, of a population or a sample.

    Args:
        x: (n, d + 1), the invariant features and then the spurious one.
        y: (n,), 1 or -1.
        weight: (n,), sums to 1.
        domain: (n,), which domain a point is from.
    """

    x: Floats
    y: Floats
    weight: Floats
    domain: NDArray[np.int64]

    @property
    def invariant(self) -> Floats:
        return self.x[:, :-1]

    @property
    def spurious(self) -> Floats:
        return self.x[:, -1]

    def moved(self, delta: Floats | float) -> "Points":
        """With `delta`, a number or one a point, added to every feature, as the paper's proof does."""
        return Points(self.x + np.reshape(delta, (-1, 1)), self.y, self.weight, self.domain)


@dataclass(frozen=True)
class Task:
    """The population of the problem.

    Args:
        p: how often the spurious feature agrees with the label, from .5 to below 1.
        beta: its size.
        margins: values of y x_inv, all above 0, equally frequent; (1,) is x_inv = y.
    """

    p: float
    beta: float = 1.0
    margins: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not 0.5 <= self.p < 1:
            raise DomainwiseError(f"p must be at least .5 and below 1, not {self.p}")
        if not self.beta > 0:
            raise DomainwiseError(f"beta must be above 0, not {self.beta}")
        if not self.margins or min(self.margins) <= 0:
            raise DomainwiseError(f"margins must be above 0, so that x_inv tells the label, not {self.margins}")

    @property
    def max_margin(self) -> float:
        """M of the theorems: the largest margin under the max-margin classifier, scaled so that the smallest is 1."""
        return max(self.margins) / min(self.margins)

    def population(self) -> Points:
        """The four groups (for each margin), with their exact weights."""
        rows = [
            (label * margin, label * sign * self.beta, label, share / 2 / len(self.margins))
            for margin in self.margins
            for label in (1.0, -1.0)
            for sign, share in ((1.0, self.p), (-1.0, 1 - self.p))
        ]
        return _points(np.array(rows))

    def sample(self, count: int, seed: int) -> Points:
        """`count` independent draws, equally weighted."""
        random = np.random.default_rng(seed)
        label = random.choice([1.0, -1.0], count)
        sign = np.where(random.random(count) < self.p, 1.0, -1.0)
        margin = random.choice(np.array(self.margins), count)
        return _points(np.stack([label * margin, label * sign * self.beta, label, np.full(count, 1 / count)], axis=1))


def _points(rows: Floats) -> Points:
    x_inv, x_sp, y, weight = rows.T
    return Points(np.stack([x_inv, x_sp], axis=1), y, weight, np.where(x_sp > 0, GRASS, DESERT))


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
