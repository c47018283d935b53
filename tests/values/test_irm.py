"""IRM: the penalty by autograd through a factor on the logits, the schedule by counting updates."""

import copy

import pytest
import torch
from tiny_problem import linear_network, two_domains
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import IRM

PENALTY_WEIGHT, LR, WEIGHT_DECAY, UPDATES = 30.0, 0.01, 0.1, 5


def three_domains(seed: int) -> list[tuple[Tensor, Tensor]]:
    """Domains of five, two and one images; the last has no second half."""
    x, y = two_domains(seed + 100)[0]
    return [*two_domains(seed), (x[:1], y[:1])]


def slope(logits: Tensor, y: Tensor) -> Tensor:
    scale = torch.ones((), requires_grad=True)
    return torch.autograd.grad(F.cross_entropy(logits * scale, y), scale, create_graph=True)[0]


def textbook(network: nn.Module, anneal_steps: int, *, rebuilds: bool) -> list[dict[str, float]]:
    """Update `network` in place and return what each update measured."""
    measured = []
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    for done in range(UPDATES):
        loss = penalty = 0
        for x, y in three_domains(done):
            logits = network(x)
            loss = loss + F.cross_entropy(logits, y) / 3
            if len(y) > 1:
                penalty = penalty + slope(logits[0::2], y[0::2]) * slope(logits[1::2], y[1::2]) / 3
        weight = 1 if done < anneal_steps else PENALTY_WEIGHT
        if done == anneal_steps and rebuilds:
            optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
        optimizer.zero_grad()
        (loss + weight * penalty).backward()
        optimizer.step()
        measured.append({"loss": loss.item(), "penalty": penalty.item()})
    return measured


def updated(network: nn.Module, anneal_steps: int) -> list[dict[str, float]]:
    algorithm = IRM(
        network,
        num_domains=3,
        penalty_weight=PENALTY_WEIGHT,
        anneal_steps=anneal_steps,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
    )
    return [algorithm.update(three_domains(seed)) for seed in range(UPDATES)]


@pytest.mark.parametrize("anneal_steps", [0, 2, UPDATES])
def test_updates_follow_the_textbook(anneal_steps: int) -> None:
    network = linear_network()
    expected = copy.deepcopy(network)
    measured = textbook(expected, anneal_steps, rebuilds=True)
    assert updated(network, anneal_steps) == [pytest.approx(one, rel=1e-9) for one in measured]
    torch.testing.assert_close(list(network.parameters()), list(expected.parameters()), rtol=1e-8, atol=1e-11)


def test_without_the_optimizer_reset_the_result_differs() -> None:
    network, kept = linear_network(), linear_network()
    updated(network, anneal_steps=2)
    textbook(kept, anneal_steps=2, rebuilds=False)
    # The difference is almost a full step, so the comparison above would detect it.
    assert (network[1].weight - kept[1].weight).abs().max() > LR / 10


def test_a_domain_with_one_sample_has_penalty_zero() -> None:
    five, two, one = three_domains(seed=0)
    settings = {"penalty_weight": PENALTY_WEIGHT, "lr": LR}
    without = IRM(linear_network(), num_domains=2, **settings).update([five, two])
    combined = IRM(linear_network(), num_domains=3, **settings).update([five, two, one])
    alone = IRM(linear_network(), num_domains=1, **settings).update([one])
    assert without["penalty"] != 0
    assert combined["penalty"] == pytest.approx(without["penalty"] * 2 / 3, rel=1e-12)
    assert alone["penalty"] == 0
