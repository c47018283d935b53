"""Exact flows against gradient descent with small steps, closed forms, and adversaries found by search."""

import numpy as np
import pytest

from domainwise.theory.dynamics import Adversary, build_direction, compute_reliance, descend, solve_flow
from domainwise.theory.problem import Floats, Points, Task

ADVERSARIES: list[tuple[Adversary, float]] = [("none", 0.0), ("sample", 0.3), ("domain", 0.3), ("domain", 0.8)]


def build_tasks() -> list[Points]:
    task = Task(0.85, beta=1.5, margins=(1.0, 2.0))
    x_inv = np.array([[1.0, 0.5], [0.5, 1.5], [2.0, 1.0]]).repeat(4, axis=0)
    y, sign = np.tile([1.0, 1.0, -1.0, -1.0], 3), np.tile([1.0, -1.0, 1.0, -1.0], 3)
    weight = np.tile([0.4, 0.1, 0.4, 0.1], 3) / 3
    x = np.column_stack([y[:, None] * x_inv, y * sign])
    plane = Points(x, y, weight, (x[:, -1] > 0).astype(np.int64))
    return [task.population(), task.sample(30, seed=1), plane]


@pytest.mark.parametrize("points", build_tasks(), ids=["population", "sample", "two invariant features"])
@pytest.mark.parametrize(("adversary", "radius"), ADVERSARIES)
def test_the_flow_is_the_limit_of_gradient_descent(points: Points, adversary: Adversary, radius: float) -> None:
    times = [0.5, 3.0]
    solution = solve_flow(points, times, adversary, radius)
    for time, weights in zip(times, solution, strict=True):
        coarse, fine = (descend(points, time, steps, adversary, radius) for steps in (250, 2_500))
        np.testing.assert_allclose(weights, fine, atol=4e-4)
        # Ten times smaller steps come about ten times closer, down to the size of the rounded corner.
        assert np.abs(fine - weights).max() < 0.3 * np.abs(coarse - weights).max() + 1e-5


def loss(points: Points, w: Floats, deltas: Floats) -> float:
    """Return the loss of points moved by `deltas`, one per point."""
    return float((points.weight * np.exp(-points.y * ((points.x + deltas) @ w))).sum())


@pytest.mark.parametrize("seed", range(4))
def test_the_domain_wise_maximum_is_exact(seed: int) -> None:
    """No shift of a whole domain inside the ball gives a higher loss than the one whose gradient is used."""
    random = np.random.default_rng(seed)
    points, radius = Task(0.8).sample(12, seed), 0.4
    w = random.normal(size=2)
    angles = np.linspace(0, 2 * np.pi, 501)
    ball = radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    best = 0.0
    for name in (0, 1):
        inside = points.domain == name
        part = Points(points.x[inside], points.y[inside], points.weight[inside], points.domain[inside])
        best += max(loss(part, w, delta) for delta in np.concatenate([ball, 0.5 * ball]))
    # The claimed maximum, from its gradient: integrated along a ray from the origin, where it is 1.
    direction = build_direction(points, "domain", radius, corner=0.0)
    steps = (np.arange(1000) + 0.5) / 1000
    claimed = 1 - np.mean([direction(s * w) @ w for s in steps])
    assert claimed == pytest.approx(best, rel=2e-3)


def test_the_sample_wise_maximum_is_exact() -> None:
    points, radius, w = Task(0.7).sample(12, 3), 0.4, np.array([0.6, -0.3])
    worst = -radius * points.y[:, None] * w / np.linalg.norm(w)
    direction = build_direction(points, "sample", radius)
    claimed = 1 - np.mean([direction(s * w) @ w for s in (np.arange(1000) + 0.5) / 1000])
    assert claimed == pytest.approx(loss(points, w, worst), rel=1e-4)


def test_without_correlation_the_flow_has_a_closed_form() -> None:
    times = np.array([0.0, 0.3, 2.0, 50.0, 1e6])
    weights = solve_flow(Task(0.5).population(), times)
    np.testing.assert_allclose(weights[:, 0], np.log1p(times), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(weights[:, 1], 0, atol=1e-9)


@pytest.mark.parametrize("p", [0.6, 0.9])
@pytest.mark.parametrize("beta", [1.0, 2.0])
@pytest.mark.parametrize("d", [-0.4, 0.0, 0.3])
def test_under_a_fixed_shift_the_spurious_weight_converges_to_w_0(p: float, beta: float, d: float) -> None:
    """The limit is the proof's w_0 for delta y = d at every point, and it is never crossed."""
    points = Task(p, beta).population()
    weights = solve_flow(points.translate(d * points.y), np.logspace(-1, 9, 60))[:, -1]
    w_0 = np.log(p / (1 - p) * (beta + d) / (beta - d)) / (2 * beta)
    assert weights[-1] == pytest.approx(w_0, abs=2e-3)
    assert (np.abs(weights) <= np.abs(w_0) + 1e-6).all()


@pytest.mark.parametrize("radius", [0.1, 0.5])
def test_the_exact_domain_wise_adversary_reaches_erms_limit_and_stays(radius: float) -> None:
    p, limit = 0.9, np.log(9) / 2
    weights = solve_flow(Task(p).population(), [30.0, 1e3, 1e6], "domain", radius)
    np.testing.assert_allclose(weights[:, -1], limit, atol=1e-4)
    assert solve_flow(Task(p).population(), [30.0])[0, -1] < limit - 0.05
    # Then w_inv grows like ln(t) / (1 - radius).
    late = solve_flow(Task(p).population(), [1e6, 1e8], "domain", radius)[:, 0]
    assert late[1] - late[0] == pytest.approx(np.log(100) / (1 - radius), rel=0.02)


@pytest.mark.parametrize("p", [0.55, 0.7, 0.9, 0.99])
def test_the_invariant_weight_grows_as_cited(p: float) -> None:
    times = np.logspace(0, 8, 30)
    margins = solve_flow(Task(p).population(), times)[:, 0]
    assert (margins >= 0.5 * np.log1p(times)).all()
    assert (margins <= 2 * np.log1p(times)).all()


def test_a_small_invariant_feature_reaches_the_band_late() -> None:
    """x_inv = .1 y also has M = 1, and stays below 0.5 ln(1 + t) for thousands of units of time."""
    margin = 0.1 * solve_flow(Task(0.9, margins=(0.1,)).population(), [1e3, 1e6])[:, 0]
    assert margin[0] < 0.5 * np.log1p(1e3)
    assert margin[1] > 0.5 * np.log1p(1e6)


def test_reliance_is_the_ratio_of_both_terms() -> None:
    assert compute_reliance(np.array([[4.0, 1.0], [-2.0, 0.5]]), beta=2.0, margin=0.5).tolist() == [1.0, 1.0]
