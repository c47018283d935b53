"""SD: cross-entropy and mean squared logit with gradients computed in numpy, and Adam written out."""

import numpy as np
import pytest
import torch
from tiny_problem import domains, linear_network

from domainwise.algorithms import SD

SIZES = (5, 2, 3)
PENALTY_WEIGHT, LR, WEIGHT_DECAY, UPDATES = 0.3, 0.01, 0.1, 5


def textbook(theta: np.ndarray) -> tuple[np.ndarray, list[dict[str, float]]]:
    """Return the parameters, with the bias as last column, after all updates, and what each update measured."""
    first, second, measured = 0, 0, []
    for step in range(1, UPDATES + 1):
        rows = [(image, label) for x, y in domains(SIZES, step) for image, label in zip(x, y, strict=True)]
        loss = penalty = gradient = 0
        for image, label in rows:
            inputs = np.append(image.numpy().ravel(), 1)
            logits = theta @ inputs
            probability = np.exp(logits) / np.exp(logits).sum()
            loss += -np.log(probability[label]) / len(rows)
            penalty += (logits**2).sum() / 3 / len(rows)
            slope = probability - np.eye(3)[label] + PENALTY_WEIGHT * 2 * logits / 3
            gradient = gradient + np.outer(slope, inputs) / len(rows)
        gradient = gradient + WEIGHT_DECAY * theta
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        theta = theta - LR * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        measured.append({"loss": loss, "penalty": penalty})
    return theta, measured


def parameters(network: torch.nn.Sequential) -> np.ndarray:
    return torch.cat([network[1].weight, network[1].bias[:, None]], dim=1).detach().numpy()


def test_updates_follow_the_textbook() -> None:
    network = linear_network()
    theta, measured = textbook(parameters(network))
    algorithm = SD(network, num_domains=3, penalty_weight=PENALTY_WEIGHT, lr=LR, weight_decay=WEIGHT_DECAY)
    returned = [algorithm.update(domains(SIZES, step)) for step in range(1, UPDATES + 1)]
    assert returned == [pytest.approx(one, rel=1e-9) for one in measured]
    np.testing.assert_allclose(parameters(network), theta, rtol=1e-8, atol=1e-11)


def test_the_penalty_by_hand() -> None:
    """Logits (3, 0, 0) and (6, 0, 0): the mean of six squares."""
    network = linear_network()
    with torch.no_grad():
        network[1].weight.zero_()
        network[1].bias.zero_()
        network[1].weight[0, 0] = 3
    x = torch.zeros(2, 3, 4, 4)
    x[:, 0, 0, 0] = torch.tensor([1.0, 2.0])
    returned = SD(network, num_domains=1).update([(x, torch.zeros(2, dtype=torch.long))])
    assert returned["penalty"] == pytest.approx((9 + 36) / 6, rel=1e-12)
