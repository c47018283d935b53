"""MLDG: a virtual step by an actual Adam on a copy of the network, for each pair of domains."""

import copy

import pytest
import torch
from tiny_problem import domains, linear_network
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import MLDG

META_TEST_WEIGHT, LR, WEIGHT_DECAY, SEED = 0.6, 0.01, 0.1, 3


def network_with_batch_norm() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def adam(network: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)


def loss_and_gradient(network: nn.Module, x: Tensor, y: Tensor) -> tuple[float, list[Tensor]]:
    """Return the gradient, which also remains in `grad` for a step."""
    network.zero_grad()
    loss = F.cross_entropy(network(x), y)
    loss.backward()
    return loss.item(), [parameter.grad.clone() for parameter in network.parameters()]


def textbook_update(network: nn.Module, optimizer: torch.optim.Adam, batches, order: list[int], held_back: int):
    """Update `network` in place and return the training loss."""
    m = len(batches)
    meta_train, meta_test = order[: m - held_back], order[m - held_back :]
    loss, total = 0.0, [torch.zeros_like(parameter) for parameter in network.parameters()]
    for place, e in enumerate(meta_train):
        clone = copy.deepcopy(network)
        inner = adam(clone)
        train_loss, train_gradient = loss_and_gradient(clone, *batches[e])
        inner.step()
        test_loss, test_gradient = loss_and_gradient(clone, *batches[meta_test[place % held_back]])
        loss += train_loss / m + META_TEST_WEIGHT * test_loss / m
        for index in range(len(total)):
            total[index] += train_gradient[index] / m + META_TEST_WEIGHT * test_gradient[index] / m
        with torch.no_grad():
            network(batches[e][0])  # only the statistics of this pass are kept
    for parameter, gradient in zip(network.parameters(), total, strict=True):
        parameter.grad = gradient
    optimizer.step()
    return loss


@pytest.mark.parametrize("build", [linear_network, network_with_batch_norm])
@pytest.mark.parametrize(
    ("sizes", "meta_test_domains", "held_back"),
    [
        ((5, 2, 3), 1, 1),
        ((5, 2, 3), 2, 2),
        ((5, 2), 1, 1),
        ((5, 2), 2, 1),  # one domain must remain for training
        ((5, 2, 3, 4, 2), 2, 2),  # three meta-train domains share two meta-test domains
        ((5, 0, 3, 4), 2, 2),
        ((5, 0, 3), 2, 1),
    ],
)
def test_updates_follow_the_textbook(build, sizes: tuple[int, ...], meta_test_domains: int, held_back: int) -> None:
    network = build()
    algorithm = MLDG(
        network,
        num_domains=len(sizes),
        generator=torch.Generator().manual_seed(SEED),
        meta_test_weight=META_TEST_WEIGHT,
        meta_test_domains=meta_test_domains,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
    )
    expected = copy.deepcopy(network)
    optimizer = adam(expected)
    generator = torch.Generator().manual_seed(SEED)
    for seed in range(4):
        returned = algorithm.update(domains(sizes, seed))
        there = [batch for batch in domains(sizes, seed) if len(batch[1])]
        order = torch.randperm(len(there), generator=generator).tolist()
        loss = textbook_update(expected, optimizer, there, order, held_back)
        assert returned == {"loss": pytest.approx(loss, rel=1e-9)}
        # The state contains the parameters and batch norm's means, variances and number of passes.
        torch.testing.assert_close(network.state_dict(), expected.state_dict(), rtol=1e-8, atol=1e-11)
