"""MAT: a mix of k perturbations per domain (Algorithm 1), against a plain loop over domains and perturbations."""

import copy

import pytest
import torch
from tiny_problem import linear_network, two_domains
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import MAT

COUNT, EPSILON, STEP_SIZE, WEIGHT_STEP_SIZE, LR, WEIGHT_DECAY = 3, 0.5, 0.3, 0.7, 0.01, 0.1


def perturbed(x: Tensor, deltas: Tensor, logits: Tensor) -> Tensor:
    """`logits` has one row for the whole batch, or one per sample."""
    offsets = []
    for row in logits.expand(len(x), COUNT):
        alpha = row.exp() / row.exp().sum()
        offsets.append(sum(alpha[i] * deltas[i] for i in range(COUNT)))
    return (x + torch.stack(offsets)).clamp(0, 1)


def inner_gradients(network, x: Tensor, y: Tensor, deltas: Tensor, logits: Tensor, cap: float) -> tuple[Tensor, ...]:
    point = deltas.clone().requires_grad_(), logits.clone().requires_grad_()
    losses = F.cross_entropy(network(perturbed(x, *point)), y, reduction="none").clamp(max=cap)
    return torch.autograd.grad(losses.mean(), point)


def stepped(deltas: Tensor, logits: Tensor, gradients: tuple[Tensor, ...], variant: str) -> tuple[Tensor, Tensor]:
    moved = []
    for i in range(COUNT):
        direction = gradients[0][i]
        if variant == "standard":
            direction = direction / direction.norm()
        elif variant == "released":
            direction = direction / gradients[0].norm()
        delta = deltas[i] + STEP_SIZE * direction
        moved.append(delta * min(1, EPSILON / delta.norm().item()))
    return torch.stack(moved), logits + WEIGHT_STEP_SIZE * gradients[1]


def textbook_update(network, optimizer, deltas, logits, batches, *, variant, schedule, clean_weight, cap) -> float:
    """Update `deltas`, `logits` (one entry per domain) and `network` in place; return the mean loss over samples."""
    losses = []
    for group in ([0], [1]) if variant == "paper" else ([0, 1],):
        gradients = {e: inner_gradients(network, *batches[e], deltas[e], logits[e], cap) for e in group}
        if schedule == "two_pass":
            for e in group:
                deltas[e], logits[e] = stepped(deltas[e], logits[e], gradients[e], variant)
        each = {}
        for e in group:
            x, y = batches[e]
            adversarial = F.cross_entropy(network(perturbed(x, deltas[e], logits[e])), y, reduction="none")
            clean = F.cross_entropy(network(x), y, reduction="none")
            each[e] = (adversarial + clean_weight * clean) / (1 + clean_weight)
        loss = sum(each[e].mean() for e in group) if variant == "released" else torch.cat(list(each.values())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule == "simultaneous":
            for e in group:
                deltas[e], logits[e] = stepped(deltas[e], logits[e], gradients[e], variant)
        losses += [each[e].detach() for e in group]
    return torch.cat(losses).mean().item()


def fresh(**given) -> MAT:
    return MAT(
        linear_network(),
        num_domains=2,
        input_shape=(3, 4, 4),
        generator=torch.Generator().manual_seed(2),
        count=COUNT,
        epsilon=EPSILON,
        weight_step_size=WEIGHT_STEP_SIZE,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
        **{"step_size": STEP_SIZE, **given},
    )


def assert_same_model(algorithm: MAT, network: nn.Module, optimizer: torch.optim.Adam) -> None:
    for ours, expected in zip(algorithm.network.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(ours, expected)
        moments, expected_moments = algorithm.optimizer.state[ours], optimizer.state[expected]
        torch.testing.assert_close(moments["exp_avg"], expected_moments["exp_avg"])
        assert moments["step"] == expected_moments["step"]


@pytest.mark.parametrize("clean_weight", [0.0, 1.0])
@pytest.mark.parametrize("schedule", ["two_pass", "simultaneous"])
@pytest.mark.parametrize("variant", ["standard", "paper", "released"])
def test_updates_with_weights_per_domain_follow_the_textbook(variant: str, schedule: str, clean_weight: float) -> None:
    # Simultaneous training has no separate inner loss that could be capped.
    given = {"loss_cap": None} if schedule == "simultaneous" else {}
    algorithm = fresh(variant=variant, weights="domain", schedule=schedule, clean_weight=clean_weight, **given)
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    deltas = list(algorithm.perturbation.deltas.detach().clone())
    logits = list(algorithm.perturbation.logits.detach().clone())
    cap = 2.0 if variant == "released" and schedule == "two_pass" else float("inf")
    for seed in range(3):
        returned = algorithm.update(two_domains(seed))
        loss = textbook_update(
            network,
            optimizer,
            deltas,
            logits,
            two_domains(seed),
            variant=variant,
            schedule=schedule,
            clean_weight=clean_weight,
            cap=cap,
        )
        assert returned == {"loss": pytest.approx(loss, rel=1e-9)}
        torch.testing.assert_close(algorithm.perturbation.deltas.detach(), torch.stack(deltas))
        torch.testing.assert_close(algorithm.perturbation.logits.detach(), torch.stack(logits))
        torch.testing.assert_close(algorithm.perturbation.mixing_weights().sum(1), torch.ones(2))
        assert_same_model(algorithm, network, optimizer)


@pytest.mark.parametrize("clean_weight", [0.0, 1.0])
@pytest.mark.parametrize("variant", ["standard", "paper", "released"])
def test_updates_with_weights_per_sample_follow_the_textbook(variant: str, clean_weight: float) -> None:
    algorithm = fresh(variant=variant, weights="sample", clean_weight=clean_weight)
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    deltas = list(algorithm.perturbation.deltas.detach().clone())
    draws = torch.Generator()
    draws.set_state(algorithm.generator.get_state())
    for seed in range(3):
        returned = algorithm.update(two_domains(seed))
        # One row of logits per sample, in the order of the samples.
        if variant == "paper":
            logits = [torch.randn(count, COUNT, generator=draws) for count in (5, 2)]
        else:
            logits = list(torch.randn(7, COUNT, generator=draws).split((5, 2)))
        loss = textbook_update(
            network,
            optimizer,
            deltas,
            logits,
            two_domains(seed),
            variant=variant,
            schedule="two_pass",
            clean_weight=clean_weight,
            cap=2.0 if variant == "released" else float("inf"),
        )
        assert returned == {"loss": pytest.approx(loss, rel=1e-9)}
        torch.testing.assert_close(algorithm.perturbation.deltas.detach(), torch.stack(deltas))
        assert_same_model(algorithm, network, optimizer)
    assert [name for name, _ in algorithm.perturbation.named_parameters()] == ["deltas"]


def sample_gradients(network, x: Tensor, y: Tensor, offset: Tensor) -> list[Tensor]:
    gradients = []
    for i in range(len(x)):
        point = offset.clone().requires_grad_()
        loss = F.cross_entropy(network((x[i] + point).clamp(0, 1)[None]), y[i : i + 1])
        gradients.append(torch.autograd.grad(loss, point)[0])
    return gradients


def best_of(deltas: list[Tensor], gradient: Tensor) -> int:
    gains = [(delta * gradient).sum().item() for delta in deltas]
    return gains.index(max(gains))


# Six updates with a warm-up over the first three: the radius is a third, two thirds, then all of epsilon.
@pytest.mark.parametrize("clean_weight", [0.0, 1.0])
def test_standard_updates_follow_the_textbook(clean_weight: float) -> None:
    """Each sample takes its best perturbation, each perturbation ascends on its own samples by the radius."""
    algorithm = fresh(num_steps=6, clean_weight=clean_weight, step_size=None)
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    start = torch.randn(2, COUNT, 3, 4, 4, generator=torch.Generator().manual_seed(2))
    deltas = [[EPSILON / 3 * delta / delta.norm() for delta in start[e]] for e in range(2)]
    sizes = set()
    for update, share in enumerate([1 / 3, 2 / 3, 1.0, 1.0]):
        batches, radius = two_domains(update), EPSILON * share
        returned = algorithm.update(batches)
        each = []
        for e, (x, y) in enumerate(batches):
            gradients = sample_gradients(network, x, y, torch.stack(deltas[e]).mean(0))
            owners = [best_of(deltas[e], gradient) for gradient in gradients]
            for place in set(owners):
                own = [gradient for gradient, owner in zip(gradients, owners, strict=True) if owner == place]
                mean = torch.stack(own).mean(0)
                moved = deltas[e][place] + radius * mean / mean.norm()
                deltas[e][place] = moved * min(1.0, radius / moved.norm().item())
            offsets = torch.stack([deltas[e][best_of(deltas[e], gradient)] for gradient in gradients])
            adversarial = F.cross_entropy(network((x + offsets).clamp(0, 1)), y, reduction="none")
            clean = F.cross_entropy(network(x), y, reduction="none")
            each.append((adversarial + clean_weight * clean) / (1 + clean_weight))
            sizes.add(len(set(owners)))
        optimizer.zero_grad()
        torch.cat(each).mean().backward()
        optimizer.step()
        assert returned == {"loss": pytest.approx(torch.cat(each).mean().item(), rel=1e-9)}
        torch.testing.assert_close(algorithm.perturbation.deltas.detach(), torch.stack(list(map(torch.stack, deltas))))
        assert_same_model(algorithm, network, optimizer)
    assert max(sizes) > 1
