"""GroupDRO: weights grown by the exponential of each domain's loss, against a plain loop over domains."""

import copy
import math

import pytest
import torch
from tiny_problem import domains, linear_network
from torch import nn
from torch.nn import functional as F

from domainwise.algorithms import GroupDRO

GROUP_STEP_SIZE, LR, WEIGHT_DECAY = 0.3, 0.01, 0.1


def fresh(network: nn.Module) -> GroupDRO:
    return GroupDRO(network, num_domains=3, group_step_size=GROUP_STEP_SIZE, lr=LR, weight_decay=WEIGHT_DECAY)


def textbook_update(network: nn.Module, optimizer: torch.optim.Adam, q: list[float], batches) -> float:
    """Update `q` and `network` in place and return the training loss."""
    losses = {e: F.cross_entropy(network(x), y) for e, (x, y) in enumerate(batches) if len(y)}
    for e, loss in losses.items():
        q[e] *= math.exp(GROUP_STEP_SIZE * loss.item())
    total = sum(q)
    for e in range(len(q)):
        q[e] /= total
    # If all domains have samples, the divisor is 1, as in the paper.
    weighted = sum(q[e] * loss for e, loss in losses.items()) / sum(q[e] for e in losses)
    optimizer.zero_grad()
    weighted.backward()
    optimizer.step()
    return weighted.item()


@pytest.mark.parametrize(
    "sizes_by_update",
    [
        pytest.param([(5, 2, 3), (5, 2, 3), (2, 5, 3), (5, 2, 1)], id="all there"),
        pytest.param([(5, 2, 3), (5, 0, 3), (5, 2, 3), (0, 2, 0)], id="one absent, then two"),
        pytest.param([(0, 2, 3), (5, 2, 3), (5, 2, 3)], id="one absent from the first"),
    ],
)
def test_updates_follow_the_textbook(sizes_by_update: list[tuple[int, ...]]) -> None:
    network = linear_network()
    algorithm = fresh(network)
    expected = copy.deepcopy(network)
    optimizer = torch.optim.Adam(expected.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    q = [1.0, 1.0, 1.0]
    assert algorithm.group_weights.tolist() == q
    for seed, sizes in enumerate(sizes_by_update):
        returned = algorithm.update(domains(sizes, seed))
        loss = textbook_update(expected, optimizer, q, domains(sizes, seed))
        assert returned == {"loss": pytest.approx(loss, rel=1e-9)}
        assert algorithm.group_weights.tolist() == pytest.approx(q, rel=1e-9)
        torch.testing.assert_close(list(network.parameters()), list(expected.parameters()), rtol=1e-8, atol=1e-11)


def test_an_absent_domain_keeps_its_weight_up_to_the_normalization() -> None:
    algorithm = fresh(linear_network())
    algorithm.update(domains((5, 2, 3), seed=0))
    before = algorithm.group_weights.tolist()
    first, absent, third = domains((5, 0, 3), seed=1)
    losses = [F.cross_entropy(algorithm.network(x), y).item() for x, y in (first, third)]
    algorithm.update([first, absent, third])
    grown = [
        before[0] * math.exp(GROUP_STEP_SIZE * losses[0]),
        before[1],
        before[2] * math.exp(GROUP_STEP_SIZE * losses[1]),
    ]
    assert algorithm.group_weights.tolist() == pytest.approx([weight / sum(grown) for weight in grown], rel=1e-9)
