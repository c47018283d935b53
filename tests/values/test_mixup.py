"""Mixup: the same draws, with pairing, mixing and loss written out pair by pair."""

import copy

import numpy as np
import pytest
import torch
from tiny_problem import domains, linear_network
from torch import Tensor

from domainwise.algorithms import Mixup

ALPHA, LR, WEIGHT_DECAY, SEED = 0.7, 0.01, 0.1, 3


def draws(generator: torch.Generator, count: int) -> tuple[list[int], list[float]]:
    """Return the order of the nonempty domains, and one mixing weight per position."""
    order = torch.randperm(count, generator=generator).tolist()
    seed = torch.randint(2**62, (), generator=generator).item()
    return order, np.random.default_rng(seed).beta(ALPHA, ALPHA, size=count).tolist()


def textbook_loss(network, batches, order: list[int], weights: list[float]) -> Tensor:
    total = 0
    following = [*order[1:], order[0]]
    for i, j, weight in zip(order, following, weights, strict=True):
        (x_i, y_i), (x_j, y_j) = batches[i], batches[j]
        pair_loss = 0
        pairs = list(zip(x_i, y_i, x_j, y_j, strict=False))  # as long as the smaller domain
        for image, label, other_image, other_label in pairs:
            logits = network((weight * image + (1 - weight) * other_image)[None])[0]
            log_probability = logits - logits.exp().sum().log()
            pair_loss -= weight * log_probability[label] + (1 - weight) * log_probability[other_label]
        total += pair_loss / len(pairs)
    return total / len(batches)


@pytest.mark.parametrize("sizes", [(5, 2, 3), (5, 2), (3, 5, 2, 4), (5, 0, 3, 2)])
def test_updates_follow_the_textbook(sizes: tuple[int, ...]) -> None:
    network = linear_network()
    algorithm = Mixup(
        network,
        num_domains=len(sizes),
        generator=torch.Generator().manual_seed(SEED),
        alpha=ALPHA,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
    )
    expected = copy.deepcopy(network)
    optimizer = torch.optim.Adam(expected.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    generator = torch.Generator().manual_seed(SEED)
    for seed in range(4):
        returned = algorithm.update(domains(sizes, seed))
        there = [batch for batch in domains(sizes, seed) if len(batch[1])]
        loss = textbook_loss(expected, there, *draws(generator, len(there)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert returned == {"loss": pytest.approx(loss.item(), rel=1e-9)}
        torch.testing.assert_close(list(network.parameters()), list(expected.parameters()), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("alpha", [0.4, 3.0])
def test_mixing_weights_follow_the_beta_distribution(alpha: float) -> None:
    network = linear_network()
    seen: list[Tensor] = []
    network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].flatten(1)))
    # In domain e only pixel e is lit, so the pixels of a mixed image are the two weights.
    batches = [(image.reshape(1, 3, 4, 4), torch.tensor([0])) for image in torch.eye(48)]
    algorithm = Mixup(network, num_domains=48, generator=torch.Generator().manual_seed(SEED), alpha=alpha)
    for _ in range(100):
        algorithm.update(batches)
    # The order of a pair's pixels does not depend on its weight.
    weights = np.array([row[row > 0][0].item() for row in torch.cat(seen)])
    moments = {2: 1 / (4 * (2 * alpha + 1)), 4: 3 / (16 * (2 * alpha + 1) * (2 * alpha + 3))}
    assert len(weights) == 4800
    assert weights.mean() == pytest.approx(0.5, abs=0.02)
    for power, moment in moments.items():
        assert ((weights - 0.5) ** power).mean() == pytest.approx(moment, rel=0.06)
