"""The two-feature problem: its groups, its samples, and the constraints of Definition B.1."""

import numpy as np
import pytest

from domainwise.errors import DomainwiseError
from domainwise.theory.problem import DESERT, GRASS, Points, Task, check_easy_to_learn


def check(*domains: Points) -> dict[str, bool]:
    return {constraint.name: constraint.holds for constraint in check_easy_to_learn(domains)}


def test_the_population_has_four_groups() -> None:
    points = Task(p=0.9, beta=2.0).population()
    groups = {(x, s): w for (x, s), w in zip(points.x.tolist(), points.weight, strict=True)}
    assert groups == pytest.approx({(1, 2): 0.45, (1, -2): 0.05, (-1, -2): 0.45, (-1, 2): 0.05})
    assert (points.y == points.invariant[:, 0]).all()
    assert (points.domain == np.where(points.spurious > 0, GRASS, DESERT)).all()
    cows_on_grass = points.weight[(points.domain == GRASS) & (points.y == 1)].sum()
    assert cows_on_grass / points.weight[points.domain == GRASS].sum() == pytest.approx(0.9)


def test_a_sample_follows_the_population() -> None:
    points = Task(p=0.8, beta=0.5, margins=(1.0, 3.0)).sample(20_000, seed=0)
    assert points.weight.sum() == pytest.approx(1)
    assert np.mean(points.spurious * points.y > 0) == pytest.approx(0.8, abs=0.01)
    assert np.mean(points.y) == pytest.approx(0, abs=0.02)
    assert set((points.y * points.invariant[:, 0]).tolist()) == {1.0, 3.0}


@pytest.mark.parametrize("wrong", [{"p": 0.4}, {"p": 1.0}, {"p": 0.9, "beta": 0.0}, {"p": 0.9, "margins": (1.0, -1.0)}])
def test_invalid_tasks_raise_an_error(wrong: dict[str, float]) -> None:
    with pytest.raises(DomainwiseError, match="must be"):
        Task(**wrong)


def test_domains_of_different_correlation_are_easy_to_learn() -> None:
    holds = check(*(Task(p, margins=(1.0, 2.0)).population() for p in (0.6, 0.9)))
    assert not holds.pop("conditional independence, as printed")
    assert all(holds.values())
    assert check(Task(0.5).population())["conditional independence, as printed"]


def test_grass_and_desert_are_not_easy_to_learn() -> None:
    points = Task(0.9).population()
    backgrounds = []
    for name in (GRASS, DESERT):
        inside = points.domain == name
        backgrounds.append(Points(points.x[inside], points.y[inside], points.weight[inside], points.domain[inside]))
    holds = check(*backgrounds)
    assert not holds["identical invariant distribution"]
    assert holds["conditional independence, as printed"]  # x_sp is constant within a background


def test_constraints_detect_violations() -> None:
    """Two invariant features determine the label by their sum, neither of them alone."""
    y = np.array([1.0, 1.0, -1.0, -1.0])
    x = np.array([[3.0, -1.0, 1.0], [-1.0, 3.0, 1.0], [1.0, -3.0, -1.0], [-3.0, 1.0, -1.0]])
    valid = Points(x, y, np.full(4, 0.25), np.zeros(4, dtype=np.int64))
    assert check(valid)["fully predictive invariant features"]
    assert check(valid)["conditional independence, given y"]

    overlapping = Points(x * [1, -1, 1], y * [1, -1, 1, -1], valid.weight, valid.domain)
    assert not check(overlapping)["fully predictive invariant features"]

    three_valued = Points(x * np.array([[1, 1, 2.0], [1, 1, 1], [1, 1, 1], [1, 1, 1]]), y, valid.weight, valid.domain)
    holds = check(three_valued)
    assert not holds["two-valued spurious feature"]
    assert not holds["conditional independence, given y"]


def test_the_largest_margin_is_relative_to_the_smallest() -> None:
    assert Task(0.9, margins=(0.5, 1.0, 2.0)).max_margin == 4
    assert Task(0.9, margins=(0.1,)).max_margin == 1
