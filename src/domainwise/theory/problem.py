"""The two-feature problem: an invariant feature that tells the label, a spurious one that agrees with it mostly.

The paper's section 4.3: x_inv = y, and x_sp = y beta with probability p, otherwise -y beta. Cows and camels (y = 1, -1)
on grass and desert (x_sp = beta, -beta); each ground is a training domain, in which one animal is more frequent.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
