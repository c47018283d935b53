"""EQRM: the quantile by scipy, its derivative by differences or by autograd through the bisection."""

import copy
import math

import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from tiny_problem import domains, linear_network
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import EQRM
from domainwise.algorithms.eqrm import estimate_quantile

LEVEL, QUANTILE_LR, LR, WEIGHT_DECAY, UPDATES = 0.8, 0.003, 0.01, 0.1, 5
RISKS = [[0.3, 1.1], [0.2, 0.9, 0.25], [2.0, 0.5, 0.7, 0.6, 1.9], [1.0, 1.0, 3.0]]


def solve(risks: list[float], level: float) -> float:
    """Return the root of the estimated distribution function, minus the level."""
    count, mean = len(risks), sum(risks) / len(risks)
    bandwidth = 1.06 * math.sqrt(sum((risk - mean) ** 2 for risk in risks) / (count - 1)) * count**-0.2
    return brentq(
        lambda point: sum(norm.cdf(point, risk, bandwidth) for risk in risks) / count - level, -20, 20, xtol=1e-14
    )


def differentiate(risks: list[float], level: float) -> list[float]:
    """Return the central differences of the root."""
    slopes = []
    for index in range(len(risks)):
        step = [1e-5 * (position == index) for position in range(len(risks))]
        above = solve([risk + move for risk, move in zip(risks, step, strict=True)], level)
        below = solve([risk - move for risk, move in zip(risks, step, strict=True)], level)
        slopes.append((above - below) / 2e-5)
    return slopes


def bisect(risks: Tensor, level: float) -> Tensor:
    """Halve the interval 32 times with tensors, so that autograd sees nothing but its two ends."""
    risks = torch.sort(risks).values
    bandwidth = 1.06 * torch.std(risks, unbiased=True) * len(risks) ** -0.2
    ends = [torch.distributions.Normal(end, bandwidth).icdf(torch.tensor(level)) for end in (risks[0], risks[-1])]
    for _ in range(32):
        middle = 0.5 * (ends[0] + ends[1])
        ends[int(torch.distributions.Normal(risks, bandwidth).cdf(middle).mean() > level)] = middle
    return 0.5 * (ends[0] + ends[1])


@pytest.mark.parametrize("level", [0.1, 0.5, 0.75, 0.99])
@pytest.mark.parametrize("risks", RISKS)
def test_quantile_and_derivative(risks: list[float], level: float) -> None:
    values = torch.tensor(risks, requires_grad=True)
    quantile = estimate_quantile(values, level)
    assert quantile.item() == pytest.approx(solve(risks, level), rel=1e-11)
    quantile.backward()
    assert values.grad.tolist() == pytest.approx(differentiate(risks, level), rel=1e-6, abs=1e-8)
    # Larger losses by the same amount mean a larger quantile by that amount.
    assert values.grad.sum() == pytest.approx(1, rel=1e-10)


@pytest.mark.parametrize("risks", RISKS[:3])
def test_the_derivative_through_the_bisection(risks: list[float]) -> None:
    values, expected = torch.tensor(risks, requires_grad=True), torch.tensor(risks, requires_grad=True)
    quantile, halved = estimate_quantile(values, LEVEL, is_derivative_exact=False), bisect(expected, LEVEL)
    assert quantile.item() == pytest.approx(halved.item(), rel=1e-10)
    quantile.backward()
    halved.backward()
    torch.testing.assert_close(values.grad, expected.grad, rtol=1e-8, atol=1e-11)


def test_the_two_derivatives_differ() -> None:
    through, exact = (torch.tensor(RISKS[2], requires_grad=True) for _ in range(2))
    estimate_quantile(through, LEVEL, is_derivative_exact=False).backward()
    estimate_quantile(exact, LEVEL).backward()
    assert (exact.grad - through.grad).abs().max() > 0.1


def test_two_values_by_hand() -> None:
    """By symmetry the median of two values is their mean, and each has half of it."""
    values = torch.tensor([1.0, 3.0], requires_grad=True)
    median = estimate_quantile(values, 0.5)
    median.backward()
    assert median.item() == pytest.approx(2, rel=1e-9)
    assert values.grad.tolist() == pytest.approx([0.5, 0.5], rel=1e-8)


@pytest.mark.parametrize("is_derivative_exact", [True, False])
def test_equal_values_are_their_own_quantile(is_derivative_exact: bool) -> None:
    for count in (1, 4):
        values = torch.full((count,), 0.7, requires_grad=True)
        quantile = estimate_quantile(values, LEVEL, is_derivative_exact=is_derivative_exact)
        quantile.backward()
        assert quantile.item() == pytest.approx(0.7)
        assert values.grad.tolist() == pytest.approx([1 / count] * count)


def textbook(
    network: nn.Module, sizes: tuple[int, ...], burn_in: float, variant: str, *, resets_at: float
) -> list[dict[str, float]]:
    """Update `network` in place and return what each update measured."""
    measured = []
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    for done in range(UPDATES):
        risks = torch.stack([F.cross_entropy(network(x), y) for x, y in domains(sizes, done) if len(y)])
        root = solve(risks.tolist(), LEVEL)
        if done < burn_in:
            objective = risks.mean()
        elif variant == "domainbed":
            objective = bisect(risks, LEVEL)
        else:
            # Weights of the kernels at the root, with the bandwidth's part by the chain rule.
            deviation = risks.std(unbiased=True)
            bandwidth = 1.06 * deviation * len(risks) ** -0.2
            scores = ((root - risks) / bandwidth).detach()
            weights = torch.exp(-(scores**2) / 2) / torch.exp(-(scores**2) / 2).sum()
            objective = (weights * risks).sum() + (weights * scores).sum() * bandwidth
        if done == resets_at:
            optimizer = torch.optim.Adam(network.parameters(), lr=QUANTILE_LR, weight_decay=WEIGHT_DECAY)
        optimizer.zero_grad()
        objective.backward()
        optimizer.step()
        measured.append({"loss": risks.mean().item(), "quantile_loss": root})
    return measured


def updated(network: nn.Module, sizes: tuple[int, ...], burn_in: float, variant: str) -> list[dict[str, float]]:
    algorithm = EQRM(
        network,
        num_domains=len(sizes),
        variant=variant,
        quantile=LEVEL,
        burn_in_steps=burn_in,
        quantile_lr=QUANTILE_LR,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
    )
    return [algorithm.update(domains(sizes, seed)) for seed in range(UPDATES)]


@pytest.mark.parametrize(
    ("variant", "burn_in", "resets_at"),
    [
        ("paper", 0, 0),
        ("paper", 2, 2),
        ("paper", 1.5, 2),
        ("paper", UPDATES, UPDATES),
        ("domainbed", 0, 0),
        ("domainbed", 2, 2),
        ("domainbed", 1.5, math.inf),  # never
    ],
)
@pytest.mark.parametrize("sizes", [(5, 2), (5, 2, 3), (5, 1, 3, 4), (5, 0, 3)])
def test_updates_follow_the_textbook(sizes: tuple[int, ...], variant: str, burn_in: float, resets_at: float) -> None:
    network = linear_network()
    expected = copy.deepcopy(network)
    measured = textbook(expected, sizes, burn_in, variant, resets_at=resets_at)
    assert updated(network, sizes, burn_in, variant) == [pytest.approx(one, rel=1e-8) for one in measured]
    torch.testing.assert_close(list(network.parameters()), list(expected.parameters()), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("variant", ["paper", "domainbed"])
def test_without_the_optimizer_reset_the_result_differs(variant: str) -> None:
    network, kept = linear_network(), linear_network()
    updated(network, (5, 2, 3), 2, variant)
    textbook(kept, (5, 2, 3), 2, variant, resets_at=math.inf)
    assert (network[1].weight - kept[1].weight).abs().max() > LR / 10
