"""UAT: one perturbation per domain, kept across updates; all variants and schedules against a plain loop."""

import copy

import numpy as np
import pytest
import torch
from tiny_problem import linear_network, two_domains
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import UAT

EPSILON, STEP_SIZE, LR, WEIGHT_DECAY = 0.5, 0.3, 0.01, 0.1
MEAN = torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64).reshape(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64).reshape(3, 1, 1)


def perturbed(x: Tensor, delta: Tensor, variant: str) -> Tensor:
    if variant == "released":
        low, high = -MEAN / STD, (1 - MEAN) / STD
        return torch.minimum(torch.maximum((x - MEAN) / STD + delta, low), high) * STD + MEAN
    return (x + delta).clamp(0, 1)


def inner_gradient(network: nn.Module, x: Tensor, y: Tensor, delta: Tensor, variant: str, cap: float) -> Tensor:
    delta = delta.clone().requires_grad_()
    losses = F.cross_entropy(network(perturbed(x, delta, variant)), y, reduction="none").clamp(max=cap)
    return torch.autograd.grad(losses.sum() if variant == "released" else losses.mean(), delta)[0]


def stepped(delta: Tensor, gradient: Tensor, variant: str) -> Tensor:
    moved = delta + STEP_SIZE * (gradient if variant == "paper" else gradient / gradient.norm())
    return moved * min(1, EPSILON / moved.norm().item())


def textbook_update(network, optimizer, deltas, batches, *, variant, schedule, clean_weight, cap) -> float:
    """Update `deltas` and `network` in place and return the mean loss over samples."""
    losses = []
    for group in ([0], [1]) if variant == "paper" else ([0, 1],):
        gradients = {e: inner_gradient(network, *batches[e], deltas[e], variant, cap) for e in group}
        if schedule == "two_pass":
            for e in group:
                deltas[e] = stepped(deltas[e], gradients[e], variant)
        each = {}
        for e in group:
            x, y = batches[e]
            adversarial = F.cross_entropy(network(perturbed(x, deltas[e], variant)), y, reduction="none")
            clean = F.cross_entropy(network(x), y, reduction="none")
            each[e] = (adversarial + clean_weight * clean) / (1 + clean_weight)
        loss = sum(each[e].mean() for e in group) if variant == "released" else torch.cat(list(each.values())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule == "simultaneous":
            for e in group:
                deltas[e] = stepped(deltas[e], gradients[e], variant)
        losses += [each[e].detach() for e in group]
    return torch.cat(losses).mean().item()


@pytest.mark.parametrize("clean_weight", [0.0, 1.0])
@pytest.mark.parametrize("schedule", ["two_pass", "simultaneous"])
@pytest.mark.parametrize("variant", ["standard", "paper", "released"])
def test_updates_follow_the_textbook(variant: str, schedule: str, clean_weight: float) -> None:
    # Simultaneous training has no separate inner loss that could be capped.
    given = {"loss_cap": None} if schedule == "simultaneous" else {}
    algorithm = UAT(
        linear_network(),
        num_domains=2,
        input_shape=(3, 4, 4),
        generator=torch.Generator().manual_seed(2),
        variant=variant,
        schedule=schedule,
        clean_weight=clean_weight,
        epsilon=EPSILON,
        step_size=STEP_SIZE,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
        **given,
    )
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    deltas = list(algorithm.perturbation.deltas.detach().clone())
    cap = 2.0 if variant == "released" and schedule == "two_pass" else float("inf")
    for seed in range(3):
        returned = algorithm.update(two_domains(seed))
        loss = textbook_update(
            network,
            optimizer,
            deltas,
            two_domains(seed),
            variant=variant,
            schedule=schedule,
            clean_weight=clean_weight,
            cap=cap,
        )
        assert returned == {"loss": pytest.approx(loss, rel=1e-9)}
        torch.testing.assert_close(algorithm.perturbation.deltas.detach(), torch.stack(deltas))
        for ours, expected in zip(algorithm.network.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(ours, expected)
            moments, expected_moments = algorithm.optimizer.state[ours], optimizer.state[expected]
            torch.testing.assert_close(moments["exp_avg"], expected_moments["exp_avg"])
            assert moments["step"] == expected_moments["step"]


def test_first_update_in_numpy() -> None:
    """The standard update in closed form: for a linear classifier d CE / d x = (softmax - onehot) W."""
    network = linear_network()
    weight, bias = network[1].weight.detach().numpy().copy(), network[1].bias.detach().numpy().copy()
    algorithm = UAT(
        network, num_domains=2, input_shape=(3, 4, 4), epsilon=EPSILON, step_size=STEP_SIZE, lr=LR, weight_decay=0.0
    )
    start = algorithm.perturbation.deltas.detach().numpy().reshape(2, 48).copy()
    algorithm.update(two_domains())

    def residual(image, label):
        logits = weight @ image + bias
        probability = np.exp(logits) / np.exp(logits).sum()
        return probability - np.eye(3)[label]

    gradient_of_weight = np.zeros((3, 48))
    for e, (xs, ys) in enumerate(two_domains()):
        images = xs.numpy().reshape(len(xs), 48)
        gradient = np.zeros(48)
        for image, label in zip(images, ys, strict=True):
            moved = image + start[e]
            inside = (moved >= 0) & (moved <= 1)
            gradient += inside * (residual(moved.clip(0, 1), label) @ weight) / len(images)
        delta = start[e] + STEP_SIZE * gradient / np.linalg.norm(gradient)
        delta *= min(1, EPSILON / np.linalg.norm(delta))
        np.testing.assert_allclose(algorithm.perturbation.deltas[e].detach().numpy().reshape(48), delta, rtol=1e-9)
        for image, label in zip(images, ys, strict=True):
            adversarial = (image + delta).clip(0, 1)
            gradient_of_weight += np.outer(residual(adversarial, label), adversarial) / 7
    np.testing.assert_allclose(network[1].weight.grad.numpy(), gradient_of_weight, rtol=1e-9, atol=1e-15)
    # Adam's first step: the bias-corrected moments are the gradient and its square.
    stepped_weight = weight - LR * gradient_of_weight / (np.abs(gradient_of_weight) + 1e-8)
    np.testing.assert_allclose(network[1].weight.detach().numpy(), stepped_weight, rtol=1e-9)
