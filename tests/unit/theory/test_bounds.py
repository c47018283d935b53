"""The bounds: their symbolic derivative, the condition of Theorem 4.1, and where they are bounds at all."""

import numpy as np
import pytest
import sympy as sp

from domainwise.errors import DomainwiseError
from domainwise.theory import bounds
from domainwise.theory.bounds import Shift
from domainwise.theory.claims import compute_condition_limit, find_decreasing_range, find_first_decrease
from domainwise.theory.dynamics import compute_reliance, solve_flow
from domainwise.theory.problem import Task

EPSILON = sp.symbols("epsilon", real=True)
p, c1, c2 = sp.symbols("p c_1 c_2", positive=True)
HALF = sp.Rational(1, 2)
SPREAD = p ** (HALF - EPSILON) * (1 - p) ** (HALF + EPSILON)
NUMERATOR = (c2 + SPREAD) - (c1 + p) * sp.diff(SPREAD, p)


def is_zero(expression: sp.Expr) -> bool:
    """Check at random points, to thirty digits, because powers with a symbolic exponent do not always simplify."""
    random = np.random.default_rng(0)
    for _ in range(20):
        values = {
            p: sp.Rational(int(random.integers(51, 99)), 100),
            EPSILON: sp.Rational(int(random.integers(-49, 49)), 100),
            c1: sp.Rational(int(random.integers(1, 90)), 10),
            c2: sp.Rational(int(random.integers(1, 90)), 10),
        }
        if abs(expression.subs(values).evalf(30)) > 1e-25:
            return False
    return True


def test_the_numerator_is_the_derivatives() -> None:
    quotient = (c1 + p) / (c2 + SPREAD)
    assert is_zero(sp.diff(quotient, p) * (c2 + SPREAD) ** 2 - NUMERATOR)


def test_the_paper_prints_the_right_numerator() -> None:
    a, b = HALF - EPSILON, HALF + EPSILON
    printed = (
        c2
        + b * p**a * (1 - p) ** b
        - c1 * a * p ** (-b) * (1 - p) ** b
        + c1 * b * p**a * (1 - p) ** (-a)
        + b * p ** (a + 1) * (1 - p) ** (-a)
    )
    assert is_zero(printed - NUMERATOR)


def test_the_value_at_one_half_is_ours_not_the_printed_one() -> None:
    at_half = sp.simplify(NUMERATOR.subs(p, HALF))
    assert sp.simplify(at_half - (c2 + HALF + EPSILON + 2 * EPSILON * c1)) == 0
    printed = 2 * EPSILON * c1 + c2 + sp.Rational(3, 4) + sp.Rational(3, 2) * EPSILON
    assert sp.simplify(printed - at_half - (HALF + EPSILON) / 2) == 0


def test_the_minimum_is_at_one_half() -> None:
    """The derivative of the numerator, as in the paper, is positive for |epsilon| < 1/2."""
    claimed = p ** (-sp.Rational(3, 2) - EPSILON) * (1 - p) ** (-sp.Rational(3, 2) + EPSILON)
    claimed *= (sp.Rational(1, 4) - EPSILON**2) * (p + c1)
    assert is_zero(sp.diff(NUMERATOR, p) - claimed)


@pytest.mark.parametrize("shift", [Shift(0.9, -1), Shift(0.3, 1, 2.0, 3.0), Shift(-0.2, 1, 0.5, 2.0)])
def test_the_code_matches_the_symbols(shift: Shift) -> None:
    values = {c1: shift.c1, c2: shift.c2, EPSILON: shift.epsilon}
    for q in (0.5, 0.7, 0.95):
        assert float(bounds.compute_slope(q, shift)) == pytest.approx(float(NUMERATOR.subs(values).subs(p, q)))
    assert bounds.compute_least_slope(shift) == pytest.approx(float(bounds.compute_slope(0.5, shift)))
    step = 1e-6
    inside = [float(np.exp(bounds.compute_lower_bound(0.7 + s, shift) * (shift.beta + shift.d))) for s in (-step, step)]
    slope = (inside[1] - inside[0]) / (2 * step)
    expected = float(bounds.compute_slope(0.7, shift)) / (shift.c2 + float(bounds.compute_h(0.7, shift.epsilon))) ** 2
    assert slope == pytest.approx(expected, rel=1e-5)


def test_constants_match_the_paper() -> None:
    shift = Shift(delta=0.4, label=-1, beta=2.0, max_margin=3.0)
    top = 2 * (2 * 3 * 1.4 - 1)
    assert (shift.d, shift.epsilon) == (-0.4, pytest.approx(-0.1))
    assert shift.c1 == pytest.approx(top / 1.6**2)
    assert shift.c2 == pytest.approx(top / (1.6 ** (1.5 + 0.1) * 2.4 ** (0.5 - 0.1)))


def test_theorem_2_is_the_case_of_zero_shift() -> None:
    shift = Shift(0.0, beta=2.0, max_margin=3.0)
    c = 2 * (2 * 3 - 1) / 4
    assert (shift.c1, shift.c2) == pytest.approx((c, c))
    low, high = bounds.compute_reliance_bounds(0.9, 100.0, shift)
    assert low == pytest.approx(np.log((c + 0.9) / (c + 0.3)) / (2 * 3 * np.log(101)))
    assert high == pytest.approx(np.log(9) / np.log(101))


@pytest.mark.parametrize("q", [0.6, 0.9, 0.99])
@pytest.mark.parametrize("margins", [(1.0,), (1.0, 3.0)])
def test_erm_lies_within_theorem_2(q: float, margins: tuple[float, ...]) -> None:
    task, times = Task(q, margins=margins), np.logspace(2, 8, 20)
    weights = solve_flow(task.population(), times)
    low, high = bounds.compute_reliance_bounds(q, times, Shift(0.0, max_margin=task.max_margin))
    for margin in margins:
        ratio = compute_reliance(weights, 1.0, margin)
        assert (low <= ratio).all()
        assert (ratio <= high).all()


def test_the_condition_holds_only_far_from_zero() -> None:
    x = compute_condition_limit()
    assert ((1 + x) / (1 - x)) ** ((1 + x) / 2) + x == pytest.approx(0, abs=1e-12)
    assert x == pytest.approx(-0.80492, abs=1e-5)
    assert find_first_decrease(-1, 1.0, 1e6) == pytest.approx(x, abs=1e-5)
    assert find_first_decrease(-1, 1.0, 1.0) == pytest.approx(-0.8067, abs=1e-3)
    assert find_first_decrease(1, 2.0, 1.0) is None
    for ratio in (-0.8, -0.5, -0.1, 0.0, 0.1, 0.5, 0.9):
        assert bounds.compute_least_slope(Shift(abs(ratio), 1 if ratio > 0 else -1)) > 0


@pytest.mark.parametrize("d", [-0.85, -0.95])
def test_where_the_bound_decreases_it_is_not_a_bound(d: float) -> None:
    shift = Shift(-d, label=-1)
    until, valid = find_decreasing_range(shift)
    assert 0.5 < until < valid < 1
    assert bounds.compute_upper_bound(valid, shift) == pytest.approx(0, abs=1e-12)
    grid = np.linspace(0.5, until, 50)
    assert (np.diff(bounds.compute_lower_bound(grid, shift)) < 0).all()
    points = Task((0.5 + until) / 2).population()
    weight = solve_flow(points.translate(d * points.y), [1e6])[0, -1]
    assert weight < 0 < bounds.compute_lower_bound((0.5 + until) / 2, shift)


@pytest.mark.parametrize("delta", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("by_majority", [False, True])
def test_the_averaged_bound_increases(delta: float, by_majority: bool) -> None:
    grid = np.linspace(0.5, 0.999, 300)
    averaged = bounds.compute_averaged_lower_bound(grid, delta, grid if by_majority else 0.5)
    assert (np.diff(averaged) > 0).all()
    by_hand = bounds.compute_lower_bound(0.7, Shift(delta, -1)), bounds.compute_lower_bound(0.7, Shift(delta, 1))
    assert bounds.compute_averaged_lower_bound(0.7, delta, 0.25) == pytest.approx(0.25 * by_hand[0] + 0.75 * by_hand[1])


@pytest.mark.parametrize(
    ("settings", "message"), [({"delta": 1.0}, r"\|delta\| < beta"), ({"delta": -0.6}, r"2 M \(1 \+ delta\) > 1")]
)
def test_shifts_outside_the_proof_raise_an_error(settings: dict[str, float], message: str) -> None:
    with pytest.raises(DomainwiseError, match=message):
        Shift(**settings)
