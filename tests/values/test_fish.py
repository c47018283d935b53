"""Fish: a copy of the network takes an Adam step per domain, and the network moves part of the way to it."""

import copy

import pytest
import torch
from tiny_problem import domains, linear_network
from torch import nn
from torch.nn import functional as F

from domainwise.algorithms import Fish

META_STEP, LR, WEIGHT_DECAY, SEED = 0.3, 0.01, 0.1, 3


def network_with_batch_norm() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def textbook_update(network: nn.Module, moments: dict, batches, order: list[int]) -> tuple[float, dict]:
    """Update `network` in place; return the mean loss of the inner steps and Adam's moments for the next update."""
    clone = copy.deepcopy(network)
    adam = torch.optim.Adam(clone.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    if moments:
        adam.load_state_dict(moments)
    losses = []
    for index in order:
        x, y = batches[index]
        loss = F.cross_entropy(clone(x), y)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    for (name, old), (_, new) in zip(network.state_dict().items(), clone.state_dict().items(), strict=True):
        if name.endswith("num_batches_tracked"):
            old.copy_(new)
        else:
            old.copy_((1 - META_STEP) * old + META_STEP * new)
    return sum(losses) / len(losses), adam.state_dict()


@pytest.mark.parametrize("build", [linear_network, network_with_batch_norm])
@pytest.mark.parametrize("order", ["random", "fixed"])
@pytest.mark.parametrize("sizes", [(5, 2), (5, 2, 3), (2, 5, 3, 4), (5, 0, 3)])
def test_updates_follow_the_textbook(build, order: str, sizes: tuple[int, ...]) -> None:
    network = build()
    expected = copy.deepcopy(network)
    algorithm = Fish(
        network,
        num_domains=len(sizes),
        generator=torch.Generator().manual_seed(SEED),
        meta_step=META_STEP,
        order=order,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
    )
    generator, moments = torch.Generator().manual_seed(SEED), {}
    for seed in range(4):
        returned = algorithm.update(domains(sizes, seed))
        present = [batch for batch in domains(sizes, seed) if len(batch[1])]
        places = torch.randperm(len(present), generator=generator).tolist()
        if order == "fixed":
            places = sorted(places)
        loss, moments = textbook_update(expected, moments, present, places)
        assert returned == {"loss": pytest.approx(loss, rel=1e-9)}
        torch.testing.assert_close(network.state_dict(), expected.state_dict(), rtol=1e-8, atol=1e-11)


def test_two_steps_by_hand() -> None:
    """From zero each domain pulls the bias to its own class; Adam's first steps have the size of the learning rate."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    nn.init.zeros_(network[1].weight)
    nn.init.zeros_(network[1].bias)
    algorithm = Fish(network, num_domains=2, meta_step=0.5, order="fixed", lr=0.1)
    x = torch.zeros(3, 1, 1, 1)
    algorithm.update([(x, torch.zeros(3, dtype=torch.long)), (x, torch.ones(3, dtype=torch.long))])
    # Gradients of the first bias: -1/2, then sigmoid(0.2). Moments by Adam's formulas, bias-corrected.
    first, second = -0.5, 1 / (1 + torch.tensor(-0.2).exp().item())
    mean = (0.9 * 0.1 * first + 0.1 * second) / (1 - 0.9**2)
    square = (0.999 * 0.001 * first**2 + 0.001 * second**2) / (1 - 0.999**2)
    inner = 0.1 - 0.1 * mean / square**0.5
    assert network[1].bias.tolist() == pytest.approx([inner / 2, -inner / 2], rel=1e-6)
