"""The two-feature problem of section 4.3: an invariant feature that determines the label, and a spurious one.

x_inv = y, and x_sp = y beta with probability p, otherwise -y beta. Cows and camels (y = 1, -1) stand on grass and
desert (x_sp = beta, -beta); each background is a training domain, in which one animal is more frequent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from domainwise.errors import DomainwiseError

Floats = NDArray[np.float64]
GRASS, DESERT = 0, 1
# Beyond it, the exponentials of the gradient flows overflow.
MAX_BETA = 100.0


@dataclass(frozen=True)
class Points:
    """Weighted points of a population or a sample.

    Args:
        x: (n, d + 1), the invariant features followed by the spurious one.
        y: labels, (n,), 1 or -1.
        weight: (n,), sums to 1.
        domain: domain of each point, (n,).
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

    def translate(self, delta: Floats | float) -> "Points":
        """Return the points with `delta`, one number or one per point, added to every feature, as in the proof."""
        return Points(self.x + np.reshape(delta, (-1, 1)), self.y, self.weight, self.domain)


@dataclass(frozen=True)
class Task:
    """The problem's distribution.

    Args:
        p: probability that the spurious feature agrees with the label, in [.5, 1).
        beta: size of the spurious feature.
        margins: values of y x_inv, all positive and equally frequent; (1,) is x_inv = y.
    """

    p: float
    beta: float = 1.0
    margins: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not 0.5 <= self.p < 1:
            raise DomainwiseError(f"p must be at least .5 and below 1, got {self.p}")
        if not 0 < self.beta <= MAX_BETA:
            raise DomainwiseError(f"beta must be above 0 and at most {MAX_BETA:g}, got {self.beta}")
        if not self.margins or min(self.margins) <= 0:
            raise DomainwiseError(f"margins must be above 0, so that x_inv determines the label, got {self.margins}")

    @property
    def max_margin(self) -> float:
        """M of the theorems: the largest margin of the max-margin classifier, scaled so that the smallest is 1."""
        return max(self.margins) / min(self.margins)

    def population(self) -> Points:
        """Return the four groups (per margin) with their exact weights."""
        rows = [
            (label * margin, label * sign * self.beta, label, share / 2 / len(self.margins))
            for margin in self.margins
            for label in (1.0, -1.0)
            for sign, share in ((1.0, self.p), (-1.0, 1 - self.p))
        ]
        return _build_points(np.array(rows))

    def sample(self, count: int, seed: int) -> Points:
        """Sample `count` independent points, equally weighted."""
        random = np.random.default_rng(seed)
        label = random.choice([1.0, -1.0], count)
        sign = np.where(random.random(count) < self.p, 1.0, -1.0)
        margin = random.choice(np.array(self.margins), count)
        return _build_points(
            np.stack([label * margin, label * sign * self.beta, label, np.full(count, 1 / count)], axis=1)
        )


def _build_points(rows: Floats) -> Points:
    x_inv, x_sp, y, weight = rows.T
    return Points(np.stack([x_inv, x_sp], axis=1), y, weight, np.where(x_sp > 0, GRASS, DESERT))


@dataclass(frozen=True)
class Constraint:
    """One constraint of Definition B.1, and whether a task satisfies it."""

    name: str
    holds: bool
    meaning: str


def check_easy_to_learn(domains: Sequence[Points]) -> list[Constraint]:
    """Check the five constraints of Definition B.1 for a task given by its domains.

    The third is checked as the paper prints it (x_sp independent of x_inv) and as in Nagarajan et al. (given y).
    """
    pooled = np.concatenate([points.x for points in domains])
    labels = np.concatenate([points.y for points in domains])
    sizes = sorted(set(np.abs(pooled[:, -1]).round(12)))
    distributions = [_compute_distribution(points.invariant, points.weight) for points in domains]
    same = all(_is_equal(distributions[0], other) for other in distributions[1:])
    printed = all(_is_independent(points.invariant, points.spurious, points.weight) for points in domains)
    given_label = all(_is_class_independent(points, label) for points in domains for label in (1, -1))
    return [
        Constraint(
            "fully predictive invariant features",
            _is_separable(pooled[:, :-1], labels),
            "some w has y w . x_inv > 0 for every point",
        ),
        Constraint("identical invariant distribution", same, "p(x_inv) is the same in every domain"),
        Constraint("conditional independence, as printed", printed, "x_sp and x_inv are independent in every domain"),
        Constraint(
            "conditional independence, given y", given_label, "x_sp and x_inv are independent within each class"
        ),
        Constraint("two-valued spurious feature", len(sizes) == 1, f"|x_sp| takes the values {sizes}"),
        Constraint("identity mapping", True, "x is (x_inv, x_sp) itself, by construction"),
    ]


def _is_separable(x: Floats, y: Floats) -> bool:
    """Return whether a linear classifier without bias makes no error: a feasibility linear program."""
    solution = linprog(np.zeros(x.shape[1]), A_ub=-y[:, None] * x, b_ub=-np.ones(len(y)), bounds=(None, None))
    return bool(solution.status == 0)


def _compute_distribution(values: Floats, weight: Floats) -> dict[tuple[float, ...], float]:
    total: dict[tuple[float, ...], float] = {}
    for row, share in zip(values.round(12), weight / weight.sum(), strict=True):
        total[tuple(row)] = total.get(tuple(row), 0.0) + share
    return {key: share for key, share in total.items() if share > 0}


def _is_equal(first: dict[tuple[float, ...], float], second: dict[tuple[float, ...], float]) -> bool:
    keys = first.keys() | second.keys()
    return all(abs(first.get(key, 0.0) - second.get(key, 0.0)) < 1e-9 for key in keys)


def _is_class_independent(points: Points, label: int) -> bool:
    inside = points.y == label
    return _is_independent(points.invariant[inside], points.spurious[inside], points.weight[inside])


def _is_independent(x_inv: Floats, x_sp: Floats, weight: Floats) -> bool:
    keep = weight > 0
    x_inv, x_sp, weight = x_inv[keep], x_sp[keep], weight[keep]
    marginal = _compute_distribution(x_inv, weight)
    return all(_is_equal(marginal, _compute_distribution(x_inv[x_sp == v], weight[x_sp == v])) for v in set(x_sp))
