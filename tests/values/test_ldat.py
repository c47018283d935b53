"""LDAT: one low-rank product per domain (Algorithm 2), against a plain loop over domains and channels."""

import copy

import pytest
import torch
from tiny_problem import linear_network, two_domains
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms import LDAT

RANK, STEP_SIZE, LR, WEIGHT_DECAY = 2, 0.3, 0.01, 0.1
RELEASED_GAMMA = 0.1


def scaled_product(left: Tensor, right: Tensor, epsilon: float) -> Tensor:
    """Return A B in each channel, scaled into the ball by one norm over all channels."""
    delta = torch.stack([left[channel] @ right[channel] for channel in range(3)])
    norm = delta.square().sum().sqrt()
    return delta * (epsilon / norm) if norm > epsilon else delta


def perturbed(x: Tensor, left: Tensor, right: Tensor, epsilon: float) -> Tensor:
    return (x + scaled_product(left, right, epsilon)).clamp(0, 1)


def inner_gradients(network, x: Tensor, y: Tensor, factors, epsilon: float, cap: float) -> tuple[Tensor, ...]:
    left, right = (factor.clone().requires_grad_() for factor in factors)
    losses = F.cross_entropy(network(perturbed(x, left, right, epsilon)), y, reduction="none").clamp(max=cap)
    return torch.autograd.grad(losses.mean(), (left, right))


def stepped(factors, gradients: tuple[Tensor, ...], variant: str) -> tuple[Tensor, ...]:
    if variant == "paper":
        return tuple(factor + STEP_SIZE * g for factor, g in zip(factors, gradients, strict=True))
    step = STEP_SIZE * RELEASED_GAMMA if variant == "released" else STEP_SIZE
    return tuple(factor + step * g / g.norm() for factor, g in zip(factors, gradients, strict=True))


def textbook_update(network, optimizer, factors, batches, *, variant, schedule, clean_weight, epsilon, cap) -> float:
    """Update `factors` (one entry per domain) and `network` in place and return the mean loss over samples."""
    losses = []
    for group in ([0], [1]) if variant == "paper" else ([0, 1],):
        gradients = {e: inner_gradients(network, *batches[e], factors[e], epsilon, cap) for e in group}
        if schedule == "two_pass":
            for e in group:
                factors[e] = stepped(factors[e], gradients[e], variant)
        each = {}
        for e in group:
            x, y = batches[e]
            adversarial = F.cross_entropy(network(perturbed(x, *factors[e], epsilon)), y, reduction="none")
            clean = F.cross_entropy(network(x), y, reduction="none")
            each[e] = (adversarial + clean_weight * clean) / (1 + clean_weight)
        loss = sum(each[e].mean() for e in group) if variant == "released" else torch.cat(list(each.values())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule == "simultaneous":
            for e in group:
                factors[e] = stepped(factors[e], gradients[e], variant)
        losses += [each[e].detach() for e in group]
    return torch.cat(losses).mean().item()


# With radius 50 the product is inside the ball and not scaled; with .5 it is outside and scaled down.
@pytest.mark.parametrize("epsilon", [0.5, 50.0])
@pytest.mark.parametrize("clean_weight", [0.0, 1.0])
@pytest.mark.parametrize("schedule", ["two_pass", "simultaneous"])
@pytest.mark.parametrize("variant", ["standard", "paper", "released"])
def test_updates_of_the_factors_follow_the_textbook(
    variant: str, schedule: str, clean_weight: float, epsilon: float
) -> None:
    # Simultaneous training has no separate inner loss that could be capped.
    given = {"loss_cap": None} if schedule == "simultaneous" else {}
    algorithm = LDAT(
        linear_network(),
        num_domains=2,
        input_shape=(3, 4, 4),
        generator=torch.Generator().manual_seed(2),
        variant=variant,
        schedule=schedule,
        clean_weight=clean_weight,
        solver="factors",
        rank=RANK,
        epsilon=epsilon,
        step_size=STEP_SIZE,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
        **given,
    )
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    left, right = algorithm.perturbation.left.detach().clone(), algorithm.perturbation.right.detach().clone()
    factors = [(left[e], right[e]) for e in range(2)]
    cap = 2.0 if variant == "released" and schedule == "two_pass" else float("inf")
    for seed in range(3):
        returned = algorithm.update(two_domains(seed))
        loss = textbook_update(
            network,
            optimizer,
            factors,
            two_domains(seed),
            variant=variant,
            schedule=schedule,
            clean_weight=clean_weight,
            epsilon=epsilon,
            cap=cap,
        )
        assert returned == {"loss": pytest.approx(loss, rel=1e-9)}
        torch.testing.assert_close(algorithm.perturbation.left.detach(), torch.stack([a for a, _ in factors]))
        torch.testing.assert_close(algorithm.perturbation.right.detach(), torch.stack([b for _, b in factors]))
        delta = algorithm.perturbation.delta().detach()
        torch.testing.assert_close(delta, torch.stack([scaled_product(a, b, epsilon) for a, b in factors]))
        for ours, expected in zip(algorithm.network.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(ours, expected)
            moments, expected_moments = algorithm.optimizer.state[ours], optimizer.state[expected]
            torch.testing.assert_close(moments["exp_avg"], expected_moments["exp_avg"])
            assert moments["step"] == expected_moments["step"]


@pytest.mark.parametrize("solver", ["projected", "factors"])
def test_the_rank_of_every_channel_stays_low(solver: str) -> None:
    algorithm = LDAT(
        linear_network(), num_domains=2, input_shape=(3, 4, 4), rank=RANK, solver=solver, epsilon=0.5, lr=LR
    )
    for seed in range(3):
        algorithm.update(two_domains(seed))
    singular_values = torch.linalg.svdvals(algorithm.perturbation.delta().detach())
    assert (singular_values[..., RANK - 1] > 1e-3).all()
    assert (singular_values[..., RANK:] < 1e-12).all()


def nearest_of_low_rank(image: Tensor, epsilon: float) -> Tensor:
    """Keep the leading singular values of each channel, then scale into the ball by one norm over all channels."""
    channels = []
    for channel in range(3):
        u, s, v = torch.linalg.svd(image[channel])
        channels.append(sum(s[i] * u[:, i : i + 1] @ v[i : i + 1] for i in range(RANK)))
    truncated = torch.stack(channels)
    return truncated * min(1.0, epsilon / truncated.norm().item())


# Six updates with a warm-up over the first three: the radius is a third, two thirds, then all of epsilon.
@pytest.mark.parametrize("clean_weight", [0.0, 1.0])
@pytest.mark.parametrize("schedule", ["two_pass", "simultaneous"])
def test_standard_updates_follow_the_textbook(schedule: str, clean_weight: float) -> None:
    algorithm = LDAT(
        linear_network(),
        num_domains=2,
        input_shape=(3, 4, 4),
        num_steps=6,
        generator=torch.Generator().manual_seed(2),
        schedule=schedule,
        clean_weight=clean_weight,
        rank=RANK,
        epsilon=0.6,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
    )
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    draws = torch.Generator().manual_seed(2)
    left, right = torch.randn(2, 3, 4, RANK, generator=draws), torch.randn(2, 3, RANK, 4, generator=draws)
    deltas = [scaled_product(left[e], right[e], 0.2) for e in range(2)]
    for update, radius in enumerate([0.2, 0.4, 0.6, 0.6]):
        batches = two_domains(update)
        returned = algorithm.update(batches)
        moved = []
        for e, (x, y) in enumerate(batches):
            delta = deltas[e].clone().requires_grad_()
            loss = F.cross_entropy(network((x + delta).clamp(0, 1)), y)
            gradient = torch.autograd.grad(loss, delta)[0]
            # One step of the size of the radius.
            moved.append(nearest_of_low_rank(deltas[e] + radius * gradient / gradient.norm(), radius))
        trained_on = moved if schedule == "two_pass" else deltas
        each = []
        for e, (x, y) in enumerate(batches):
            adversarial = F.cross_entropy(network((x + trained_on[e]).clamp(0, 1)), y, reduction="none")
            clean = F.cross_entropy(network(x), y, reduction="none")
            each.append((adversarial + clean_weight * clean) / (1 + clean_weight))
        optimizer.zero_grad()
        torch.cat(each).mean().backward()
        optimizer.step()
        deltas = moved
        assert returned == {"loss": pytest.approx(torch.cat(each).mean().item(), rel=1e-9)}
        torch.testing.assert_close(algorithm.perturbation.delta().detach(), torch.stack(deltas))
        for ours, expected in zip(algorithm.network.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(ours, expected)
