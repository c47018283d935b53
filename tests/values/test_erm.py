"""ERM: one Adam step on the pooled mean cross-entropy, recomputed with numpy."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from domainwise.algorithms import ERM

LR, WEIGHT_DECAY = 0.01, 0.1


def linear_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 3))


def two_domains(seed: int = 1):
    """Batches of five and two images."""
    random = torch.Generator().manual_seed(seed)
    return [
        (torch.rand(count, 3, 4, 4, generator=random), torch.randint(3, (count,), generator=random)) for count in (5, 2)
    ]


def test_updates_equal_adam_on_the_pooled_mean_by_hand() -> None:
    network = linear_network()
    weight, bias = network[1].weight.detach().numpy().copy(), network[1].bias.detach().numpy().copy()
    algorithm = ERM(network, num_domains=2, lr=LR, weight_decay=WEIGHT_DECAY)
    theta = np.concatenate([weight, bias[:, None]], axis=1)
    first, second = np.zeros_like(theta), np.zeros_like(theta)
    for step in (1, 2, 3):
        batches = two_domains(seed=step)
        returned = algorithm.update(batches)

        x = np.concatenate([np.concatenate([x.numpy().reshape(len(x), 48) for x, _ in batches]), np.ones((7, 1))], 1)
        y = np.concatenate([y.numpy() for _, y in batches])
        logits = x @ theta.T
        probability = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        loss = -np.log(probability[np.arange(7), y]).mean()
        gradient = (probability - np.eye(3)[y]).T @ x / 7 + WEIGHT_DECAY * theta
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        theta = theta - LR * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)

        assert returned == {"loss": pytest.approx(loss, rel=1e-12)}
        np.testing.assert_allclose(network[1].weight.detach().numpy(), theta[:, :48], rtol=1e-9)
        np.testing.assert_allclose(network[1].bias.detach().numpy(), theta[:, 48], rtol=1e-9)


def test_all_samples_have_equal_weight() -> None:
    network = linear_network()
    expected = copy.deepcopy(network)
    batches = two_domains()
    ERM(network, num_domains=2, lr=LR).update(batches)
    total = sum(F.cross_entropy(expected(x[None]), y[None]) for xs, ys in batches for x, y in zip(xs, ys, strict=True))
    (total / 7).backward()
    for ours, theirs in zip(network.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
