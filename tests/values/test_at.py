"""AT: one perturbation per sample in every update; all variants against a plain loop over domains and samples."""

import copy

import pytest
import torch
from tiny_problem import linear_network, two_domains
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import AT

EPSILON, STEP_SIZE, LR, WEIGHT_DECAY = 0.5, 0.3, 0.01, 0.1
MEAN = torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64).reshape(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64).reshape(3, 1, 1)


def fresh(**given) -> AT:
    return AT(
        linear_network(),
        num_domains=2,
        input_shape=(3, 4, 4),
        generator=torch.Generator().manual_seed(2),
        epsilon=EPSILON,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
        **{"step_size": STEP_SIZE, **given},
    )


def in_ball(count: int, draws: torch.Generator) -> Tensor:
    """Uniform in the ball: a Gaussian direction times a radius whose n-th power is uniform, in n dimensions."""
    gaussian = torch.randn(count, 3, 4, 4, generator=draws)
    volume = torch.rand(count, 1, 1, 1, generator=draws)
    return torch.stack([volume[i] ** (1 / 48) * EPSILON * gaussian[i] / gaussian[i].norm() for i in range(count)])


def attack_a_sample(network, x: Tensor, y: Tensor, delta: Tensor, *, steps: int, raw: bool) -> Tensor:
    """Projected ascent in pixels, for each image of one domain separately."""
    adversarial = []
    for i in range(len(x)):
        image = (x[i] + delta[i]).clamp(0, 1)
        for _ in range(steps):
            point = image.clone().requires_grad_()
            # The inner loss is the domain's mean, of which a sample is one share.
            loss = F.cross_entropy(network(point[None]), y[i : i + 1]) / len(x)
            gradient = torch.autograd.grad(loss, point)[0]
            offset = image - x[i] + STEP_SIZE * (gradient if raw else gradient / gradient.norm())
            offset = offset * min(1, EPSILON / offset.norm().item())
            image = (x[i] + offset).clamp(0, 1)
        adversarial.append(image)
    return torch.stack(adversarial)


def attack_a_domain(network, x: Tensor, y: Tensor, delta: Tensor, *, steps: int) -> Tensor:
    """The released attack: in normalized space, with all images of a domain as one vector."""
    z = (x - MEAN) / STD
    low, high = -MEAN / STD, (1 - MEAN) / STD
    for _ in range(steps):
        point = delta.clone().requires_grad_()
        gradient = torch.autograd.grad(F.cross_entropy(network((z + point) * STD + MEAN), y), point)[0]
        delta = delta + STEP_SIZE * gradient / gradient.norm()
        delta = delta * min(1, EPSILON / delta.norm().item())
        delta = torch.minimum(torch.maximum(z + delta, low), high) - z
    return (z + delta) * STD + MEAN


def train_on(network, optimizer, adversarial, batches, *, by_domain: bool, clean_weight: float) -> Tensor:
    """Take one step on the given domains and return the loss of each sample."""
    each = []
    for x_adv, (x, y) in zip(adversarial, batches, strict=True):
        on_adversarial = F.cross_entropy(network(x_adv), y, reduction="none")
        on_clean = F.cross_entropy(network(x), y, reduction="none")
        each.append((on_adversarial + clean_weight * on_clean) / (1 + clean_weight))
    optimizer.zero_grad()
    (sum(losses.mean() for losses in each) if by_domain else torch.cat(each).mean()).backward()
    optimizer.step()
    return torch.cat(each).detach()


def assert_same_model(algorithm: AT, network: nn.Module, optimizer: torch.optim.Adam) -> None:
    for ours, expected in zip(algorithm.network.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(ours, expected)
        moments, expected_moments = algorithm.optimizer.state[ours], optimizer.state[expected]
        torch.testing.assert_close(moments["exp_avg"], expected_moments["exp_avg"])
        assert moments["step"] == expected_moments["step"]


@pytest.mark.parametrize("clean_weight", [0.0, 1.0])
@pytest.mark.parametrize("start", ["zero", "random"])
@pytest.mark.parametrize("steps", [1, 3])
def test_standard_updates_follow_the_textbook(steps: int, start: str, clean_weight: float) -> None:
    algorithm = fresh(steps=steps, start=start, clean_weight=clean_weight)
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    draws = torch.Generator().manual_seed(2)
    for seed in range(3):
        batches = two_domains(seed)
        returned = algorithm.update(batches)
        starts = (torch.zeros(7, 3, 4, 4) if start == "zero" else in_ball(7, draws)).split((5, 2))
        adversarial = [
            attack_a_sample(network, x, y, delta, steps=steps, raw=False)
            for (x, y), delta in zip(batches, starts, strict=True)
        ]
        each = train_on(network, optimizer, adversarial, batches, by_domain=False, clean_weight=clean_weight)
        assert returned == {"loss": pytest.approx(each.mean().item(), rel=1e-9)}
        assert_same_model(algorithm, network, optimizer)


@pytest.mark.parametrize("clean_weight", [0.0, 1.0])
def test_paper_updates_follow_the_textbook(clean_weight: float) -> None:
    algorithm = fresh(variant="paper", clean_weight=clean_weight)
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    draws = torch.Generator().manual_seed(2)
    for seed in range(3):
        batches = two_domains(seed)
        returned = algorithm.update(batches)
        losses = []
        for x, y in batches:
            x_adv = attack_a_sample(network, x, y, in_ball(len(x), draws), steps=1, raw=True)
            losses.append(train_on(network, optimizer, [x_adv], [(x, y)], by_domain=False, clean_weight=clean_weight))
        assert returned == {"loss": pytest.approx(torch.cat(losses).mean().item(), rel=1e-9)}
        assert_same_model(algorithm, network, optimizer)


@pytest.mark.parametrize("clean_weight", [0.0, 1.0])
def test_released_updates_follow_the_textbook(clean_weight: float) -> None:
    algorithm = fresh(variant="released", clean_weight=clean_weight)
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    draws = torch.Generator().manual_seed(2)
    for seed in range(3):
        batches = two_domains(seed)
        returned = algorithm.update(batches)
        starts = (EPSILON * (2 * torch.rand(7, 3, 4, 4, generator=draws) - 1)).split((5, 2))
        adversarial = [
            attack_a_domain(network, x, y, delta, steps=10) for (x, y), delta in zip(batches, starts, strict=True)
        ]
        each = train_on(network, optimizer, adversarial, batches, by_domain=True, clean_weight=clean_weight)
        assert returned == {"loss": pytest.approx(each.mean().item(), rel=1e-9)}
        assert_same_model(algorithm, network, optimizer)


def test_one_step_in_linf_is_fgsm() -> None:
    algorithm = fresh(norm="linf", start="zero")
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    batches = two_domains()
    algorithm.update(batches)
    adversarial = []
    for x, y in batches:
        point = x.clone().requires_grad_()
        gradient = torch.autograd.grad(F.cross_entropy(network(point), y), point)[0]
        adversarial.append((x + STEP_SIZE * gradient.sign()).clamp(0, 1))
    train_on(network, optimizer, adversarial, batches, by_domain=False, clean_weight=0.0)
    assert_same_model(algorithm, network, optimizer)


def test_perturbed_images_stay_in_their_balls_and_bounds() -> None:
    algorithm = fresh(steps=5)
    seen: list[Tensor] = []
    algorithm.network.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().clone()))
    batches = two_domains()
    algorithm.update(batches)
    trained_on = seen[-1]
    offset = trained_on - torch.cat([x for x, _ in batches])
    assert trained_on.min() == 0
    assert trained_on.max() == 1
    assert (offset.flatten(1).norm(dim=1) <= EPSILON + 1e-12).all()
    assert (offset.flatten(1).norm(dim=1) > EPSILON / 2).all()


# Six updates with a warm-up over the first three: the radius is a third, two thirds, then all of epsilon.
@pytest.mark.parametrize("rank", [None, 1, 2])
def test_standard_step_and_warmup_from_zero_follow_the_textbook(rank: int | None) -> None:
    """One step from zero: the strongest perturbation of its rank to first order, of the current radius."""
    algorithm = fresh(num_steps=6, start="zero", step_size=None, rank=rank)
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    for update, share in enumerate([1 / 3, 2 / 3, 1.0, 1.0]):
        batches = two_domains(update)
        returned = algorithm.update(batches)
        adversarial = []
        for x, y in batches:
            images = []
            for i in range(len(x)):
                point = x[i].clone().requires_grad_()
                gradient = torch.autograd.grad(F.cross_entropy(network(point[None]), y[i : i + 1]), point)[0]
                if rank is not None:
                    u, s, v = torch.linalg.svd(gradient)
                    gradient = (u[..., :rank] * s[..., None, :rank]) @ v[..., :rank, :]
                images.append((x[i] + share * EPSILON * gradient / gradient.norm()).clamp(0, 1))
            adversarial.append(torch.stack(images))
        each = train_on(network, optimizer, adversarial, batches, by_domain=False, clean_weight=0.0)
        assert returned == {"loss": pytest.approx(each.mean().item(), rel=1e-9)}
        assert_same_model(algorithm, network, optimizer)
