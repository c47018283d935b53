"""RDM: kernels by loops over pairs of losses, variances by their definition, the schedule by counting updates."""

import copy
import math

import pytest
import torch
from tiny_problem import domains, linear_network
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import RDM

SETTINGS = {"penalty_weight": 4.0, "variance_weight": 0.05, "annealed_lr": 0.003, "lr": 0.01, "weight_decay": 0.1}
UPDATES = 5


def mean_kernel(first: Tensor, second: Tensor) -> Tensor:
    total = 0
    for one in first:
        for other in second:
            for exponent in range(-4, 4):
                total = total + torch.exp(-(10.0**exponent) * (one - other) ** 2)
    return total / len(first) / len(second)


def variance(values: Tensor) -> Tensor | float:
    if len(values) == 1:
        return 0.0
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def textbook(
    network: nn.Module, sizes: tuple[int, ...], anneal_steps: int, *, rebuilds: bool = True
) -> list[dict[str, float]]:
    """Update `network` in place and return what each update measured."""
    measured, decay = [], SETTINGS["weight_decay"]
    optimizer = torch.optim.Adam(network.parameters(), lr=SETTINGS["lr"], weight_decay=decay)
    for done in range(UPDATES):
        parts = [F.cross_entropy(network(x), y, reduction="none") for x, y in domains(sizes, done) if len(y)]
        loss = sum(part.mean() for part in parts) / len(parts)
        worst, everything = max(parts, key=lambda part: part.mean().item()), torch.cat(parts)
        penalty = mean_kernel(worst, worst) + mean_kernel(everything, everything) - 2 * mean_kernel(worst, everything)
        spread = variance(everything) + variance(worst)
        objective = loss
        if done >= anneal_steps:
            objective = loss + SETTINGS["penalty_weight"] * penalty + SETTINGS["variance_weight"] * spread
        if done == anneal_steps and rebuilds:
            optimizer = torch.optim.Adam(network.parameters(), lr=SETTINGS["annealed_lr"], weight_decay=decay)
        optimizer.zero_grad()
        objective.backward()
        optimizer.step()
        measured.append({"loss": loss.item(), "penalty": penalty.item(), "variance": spread.item()})
    return measured


def updated(network: nn.Module, sizes: tuple[int, ...], anneal_steps: int) -> list[dict[str, float]]:
    algorithm = RDM(network, num_domains=len(sizes), anneal_steps=anneal_steps, **SETTINGS)
    return [algorithm.update(domains(sizes, seed)) for seed in range(UPDATES)]


@pytest.mark.parametrize("anneal_steps", [0, 2, UPDATES])
@pytest.mark.parametrize("sizes", [(5, 2), (5, 2, 3), (1, 5, 1), (5, 0, 3)])
def test_updates_follow_the_textbook(sizes: tuple[int, ...], anneal_steps: int) -> None:
    network = linear_network()
    expected = copy.deepcopy(network)
    measured = textbook(expected, sizes, anneal_steps)
    assert updated(network, sizes, anneal_steps) == [pytest.approx(one, rel=1e-9, abs=1e-13) for one in measured]
    torch.testing.assert_close(list(network.parameters()), list(expected.parameters()), rtol=1e-8, atol=1e-11)


def test_without_the_optimizer_reset_the_result_differs() -> None:
    network, kept = linear_network(), linear_network()
    updated(network, (5, 2), anneal_steps=2)
    textbook(kept, (5, 2), anneal_steps=2, rebuilds=False)
    assert (network[1].weight - kept[1].weight).abs().max() > SETTINGS["lr"] / 10


def test_two_losses_by_hand() -> None:
    """With logits (0, 0) and (0, t) and label 0 the losses are log 2 and log(1 + e^t); the second domain is the worst.

    Half of all samples are the worst domain, so the distance is (k(0) - k(d)) / 2 per kernel.
    """
    network = nn.Sequential(nn.Flatten(), nn.Linear(1, 2, bias=False))
    with torch.no_grad():
        network[1].weight.copy_(torch.tensor([[0.0], [1.0]]))
    batches = [(torch.tensor([value]).reshape(1, 1, 1, 1), torch.tensor([0])) for value in (0.0, 2.0)]
    returned = RDM(network, num_domains=2).update(batches)
    difference = math.log(1 + math.exp(2)) - math.log(2)
    kernels = [(1 - math.exp(-(10**exponent) * difference**2)) / 2 for exponent in range(-4, 4)]
    assert returned["penalty"] == pytest.approx(sum(kernels), rel=1e-12)
    assert returned["variance"] == pytest.approx(difference**2 / 2, rel=1e-12)
