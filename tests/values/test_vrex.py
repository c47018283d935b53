"""VREx: mean and population variance of the domains' losses, with gradients computed in numpy."""

import numpy as np
import pytest
import torch
from tiny_problem import linear_network, two_domains
from torch import Tensor

from domainwise.algorithms import VREx

PENALTY_WEIGHT, LR, WEIGHT_DECAY, UPDATES = 7.0, 0.01, 0.1, 5


def three_domains(seed: int) -> list[tuple[Tensor, Tensor]]:
    """Domains of five, two and three images."""
    x, y = two_domains(seed + 100)[0]
    return [*two_domains(seed), (x[:3], y[:3])]


def loss_and_gradient(theta: np.ndarray, x: Tensor, y: Tensor) -> tuple[float, np.ndarray]:
    """Cross-entropy of a linear network whose last column is the bias."""
    count = len(y)
    inputs = np.concatenate([x.numpy().reshape(count, 48), np.ones((count, 1))], axis=1)
    exponentials = np.exp(inputs @ theta.T)
    probability = exponentials / exponentials.sum(1, keepdims=True)
    loss = -np.log(probability[np.arange(count), y.numpy()]).mean()
    return loss, (probability - np.eye(3)[y.numpy()]).T @ inputs / count


def textbook(theta: np.ndarray, anneal_steps: int, *, rebuilds: bool = True) -> tuple[np.ndarray, list[dict]]:
    """Return the parameters after all updates, with Adam written out, and what each update measured."""
    first, second, step, measured = 0, 0, 0, []
    for done in range(UPDATES):
        if done == anneal_steps and rebuilds:
            first, second, step = 0, 0, 0
        weight = 1 if done < anneal_steps else PENALTY_WEIGHT
        each = [loss_and_gradient(theta, x, y) for x, y in three_domains(done)]
        mean = sum(loss for loss, _ in each) / 3
        variance = sum((loss - mean) ** 2 for loss, _ in each) / 3
        # The gradient of the mean cancels, because deviations sum to zero.
        gradient = sum((1 + weight * 2 * (loss - mean)) * slope for loss, slope in each) / 3
        gradient = gradient + WEIGHT_DECAY * theta
        step += 1
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        theta = theta - LR * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        measured.append({"loss": mean, "penalty": variance})
    return theta, measured


def updated(anneal_steps: int) -> tuple[np.ndarray, np.ndarray, list[dict[str, float]]]:
    """Return the parameters before and after all updates, and what each update returned."""
    network = linear_network()
    before = parameters(network)
    algorithm = VREx(
        network,
        num_domains=3,
        penalty_weight=PENALTY_WEIGHT,
        anneal_steps=anneal_steps,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
    )
    returned = [algorithm.update(three_domains(seed)) for seed in range(UPDATES)]
    return before, parameters(network), returned


def parameters(network: torch.nn.Sequential) -> np.ndarray:
    return torch.cat([network[1].weight, network[1].bias[:, None]], dim=1).detach().numpy()


@pytest.mark.parametrize("anneal_steps", [0, 2, UPDATES])
def test_updates_follow_the_textbook(anneal_steps: int) -> None:
    before, after, returned = updated(anneal_steps)
    theta, measured = textbook(before, anneal_steps)
    assert returned == [pytest.approx(one, rel=1e-9) for one in measured]
    np.testing.assert_allclose(after, theta, rtol=1e-8, atol=1e-11)


def test_without_the_optimizer_reset_the_result_differs() -> None:
    before, after, _ = updated(anneal_steps=2)
    kept, _ = textbook(before, anneal_steps=2, rebuilds=False)
    # The difference is almost a full step, so the comparison above would detect it.
    assert np.abs(after - kept).max() > LR / 10
