"""IGA: squared distances of the domains' gradients to their mean, with derivatives of gradients in numpy."""

import copy

import numpy as np
import pytest
import torch
from tiny_problem import domains, linear_network
from torch import Tensor, nn

from domainwise.algorithms import IGA
from domainwise.networks import Network

LR, WEIGHT_DECAY = 0.01, 0.1


def loss_gradient_and_hessian(theta: np.ndarray, x: Tensor, y: Tensor) -> tuple[float, np.ndarray, np.ndarray]:
    """Cross-entropy of a linear network with parameters (class, input), the last input being the bias's 1."""
    count = len(y)
    inputs = np.concatenate([x.numpy().reshape(count, 48), np.ones((count, 1))], axis=1)
    loss, gradient, hessian = 0.0, np.zeros((3, 49)), np.zeros((147, 147))
    for row, label in zip(inputs, y.tolist(), strict=True):
        exponentials = np.exp(theta @ row)
        probability = exponentials / exponentials.sum()
        loss += -np.log(probability[label]) / count
        gradient += np.outer(probability - np.eye(3)[label], row) / count
        curvature = np.diag(probability) - np.outer(probability, probability)
        hessian += np.kron(curvature, np.outer(row, row)) / count
    return loss, gradient.ravel(), hessian


@pytest.mark.parametrize("penalty_weight", [0.0, 3.0, 1000.0])
@pytest.mark.parametrize("sizes", [(5, 2), (5, 2, 3), (5, 0, 3), (1, 4)])
def test_updates_follow_the_textbook(penalty_weight: float, sizes: tuple[int, ...]) -> None:
    network = linear_network()
    theta = torch.cat([network[1].weight, network[1].bias[:, None]], dim=1).detach().numpy()
    algorithm = IGA(network, num_domains=len(sizes), penalty_weight=penalty_weight, lr=LR, weight_decay=WEIGHT_DECAY)
    first, second = 0.0, 0.0
    for step in range(1, 5):
        returned = algorithm.update(domains(sizes, step))
        each = [loss_gradient_and_hessian(theta, x, y) for x, y in domains(sizes, step) if len(y)]
        loss = sum(one[0] for one in each) / len(each)
        mean = sum(one[1] for one in each) / len(each)
        mean_hessian = sum(one[2] for one in each) / len(each)
        penalty = sum(((one[1] - mean) ** 2).sum() for one in each)
        # Including the derivative of the mean.
        slope = sum(2 * (one[2] - mean_hessian) @ (one[1] - mean) for one in each)
        gradient = (mean + penalty_weight * slope).reshape(3, 49) + WEIGHT_DECAY * theta
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        theta = theta - LR * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        assert returned == pytest.approx({"loss": loss, "penalty": penalty}, rel=1e-8)
        ours = torch.cat([network[1].weight, network[1].bias[:, None]], dim=1).detach().numpy()
        np.testing.assert_allclose(ours, theta, rtol=1e-7, atol=1e-9)


def test_the_penalty_has_the_numerical_derivative() -> None:
    """In a network with a hidden layer and a frozen one."""
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
    network = Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4)
    featurizer[1].requires_grad_(False)
    algorithm = IGA(network, num_domains=3, penalty_weight=20.0, lr=0.0)
    algorithm.update(domains((5, 2, 3), 0))

    def objective(shift: float) -> float:
        moved = copy.deepcopy(network)
        with torch.no_grad():
            moved.featurizer[3].weight[1, 2] += shift
        measured = IGA(moved, num_domains=3, lr=0.0).update(domains((5, 2, 3), 0))
        return measured["loss"] + 20 * measured["penalty"]

    slope = (objective(1e-5) - objective(-1e-5)) / 2e-5
    assert featurizer[3].weight.grad[1, 2].item() == pytest.approx(slope, rel=1e-6)


def test_two_gradients_by_hand() -> None:
    """From zero weights, with images of zeros: the gradients of the biases are (-1/2, 1/2) and its opposite."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    nn.init.zeros_(network[1].weight)
    nn.init.zeros_(network[1].bias)
    x = torch.zeros(3, 1, 1, 1)
    batches = [(x, torch.full((3,), label)) for label in (0, 1)]
    # Their mean is zero, so each has the squared distance 1/4 + 1/4 from it.
    assert IGA(network, num_domains=2).update(batches)["penalty"] == pytest.approx(1.0, rel=1e-12)
