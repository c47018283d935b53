"""APGD: the schedule and losses of the paper, its optimum on linear models, its bounds, and torchattacks' APGD."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacked_network import count_correct, train_network
from domainwise.perturbations.base import Norm, compute_norm
from domainwise.training.apgd import (
    AttackLoss,
    cross_entropy_loss,
    dlr_loss,
    find_checkpoints,
    run_apgd,
    targeted_dlr_loss,
)

EPSILONS: dict[Norm, float] = {"linf": 12 / 255, "l2": 0.5}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_checkpoints_of_the_paper() -> None:
    assert find_checkpoints(100) == [22, 41, 57, 70, 80, 87, 93, 99]
    # 22, 41, 57, ... percent of 50 are 11, 20.5, 28.5, 35, 40, 43.5, 46.5 and 49.5.
    assert find_checkpoints(50) == [11, 21, 29, 35, 40, 44, 47, 50]


def test_dlr_losses_of_logits_by_hand() -> None:
    logits = torch.tensor([[4.0, 1.0, 3.0, 0.0, 2.0]]).expand(3, -1)
    y, target = torch.tensor([0, 2, 3]), torch.tensor([2, 4, 0])
    # Right: -(4 - 3) / (4 - 2). Wrong: (4 - 3) / (4 - 2) and (4 - 0) / (4 - 2).
    assert dlr_loss(logits, y, y).tolist() == pytest.approx([-0.5, 0.5, 2.0])
    # -(4 - 3), -(3 - 2) and -(0 - 4), over 4 - (2 + 1) / 2.
    assert targeted_dlr_loss(logits, y, target).tolist() == pytest.approx([-0.4, -0.4, 1.6])


@pytest.mark.parametrize("loss", [dlr_loss, targeted_dlr_loss])
def test_dlr_losses_do_not_depend_on_shift_and_scale(loss: AttackLoss) -> None:
    logits = torch.randn(20, 6, generator=seeded())
    y, target = torch.randint(6, (2, 20), generator=seeded(1))
    expected = loss(logits, y, target)
    assert torch.allclose(loss(1e4 * logits + 3e4, y, target), expected, rtol=1e-2, atol=1e-2)
    assert not torch.allclose(cross_entropy_loss(10 * logits, y, y), cross_entropy_loss(logits, y, y), rtol=0.1)


class Linear(nn.Module):
    """Logits of two classes, of which the first is predicted by a wide margin."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        other = (x - 0.5).flatten(1) @ self.weight.flatten() - 1e3
        return 1e-3 * torch.stack([torch.zeros_like(other), other], 1)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_optimum_of_a_linear_model(norm: Norm) -> None:
    """Where no image is misclassified and nothing is clipped: epsilon sign(w), or epsilon w / |w|."""
    weight = torch.randn(3, 4, 4, generator=seeded())
    x, y, epsilon = torch.full((5, 3, 4, 4), 0.5), torch.zeros(5, dtype=torch.int64), 0.1
    offset = run_apgd(Linear(weight), x, y, epsilon=epsilon, norm=norm, steps=60, generator=seeded()) - x
    best = epsilon * (weight.sign() if norm == "linf" else weight / weight.norm())
    assert torch.allclose(offset, best.expand_as(offset), atol=2e-3 if norm == "l2" else 1e-6)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("loss", [cross_entropy_loss, dlr_loss, targeted_dlr_loss])
def test_points_stay_in_the_ball_and_in_range(norm: Norm, loss: AttackLoss) -> None:
    network, x, y = train_network()
    x, y = x[:20], y[:20]
    epsilon = 4 * EPSILONS[norm]
    x = torch.where(x < 0.4, torch.zeros_like(x), x)
    for steps in (1, 12):
        x_adv = run_apgd(
            network, x, y, epsilon=epsilon, norm=norm, steps=steps, loss=loss, target=(y + 1) % 5, generator=seeded()
        )
        low, high = x_adv.aminmax()
        assert low >= 0
        assert high <= 1
        reached = compute_norm(x_adv - x, norm).amax()
        assert 0.9 * epsilon < reached <= epsilon * (1 + 1e-5)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_more_steps_and_radius_leave_less(norm: Norm) -> None:
    network, x, y = train_network()
    epsilon = EPSILONS[norm]
    correct = [
        count_correct(network, run_apgd(network, x, y, epsilon=size, norm=norm, steps=30, generator=seeded()), y)
        for size in (0.5 * epsilon, epsilon, 2 * epsilon)
    ]
    assert correct == sorted(correct, reverse=True)
    assert correct[0] > correct[-1] + 20
    few = count_correct(network, run_apgd(network, x, y, epsilon=epsilon, norm=norm, steps=2, generator=seeded()), y)
    assert few > correct[1]


def test_it_returns_the_highest_loss_of_all_points() -> None:
    """Of images that are never misclassified."""
    network, x, y = train_network()
    with torch.no_grad():
        is_safe = network(x).softmax(1).gather(1, y[:, None])[:, 0] > 0.9
    x, y = x[is_safe], y[is_safe]
    losses: list[Tensor] = []
    handle = network.register_forward_hook(
        lambda module, inputs, logits: losses.append(F.cross_entropy(logits, y, reduction="none").detach())
    )
    x_adv = run_apgd(network, x, y, epsilon=0.5 / 255, norm="linf", steps=30, generator=seeded())
    handle.remove()
    assert count_correct(network, x_adv, y) == len(x) > 20
    assert len(losses) == 31
    with torch.no_grad():
        returned = F.cross_entropy(network(x_adv), y, reduction="none")
    assert torch.allclose(returned, torch.stack(losses).amax(0), rtol=1e-5)
    assert not torch.allclose(returned, losses[-1], rtol=1e-5)


def test_a_misclassified_image_is_returned_at_once() -> None:
    network, x, y = train_network()
    wrong = (y + 1) % 5
    calls = []
    handle = network.register_forward_hook(lambda *_: calls.append(1))
    x_adv = run_apgd(network, x, wrong, epsilon=1 / 255, norm="linf", steps=50, generator=seeded())
    handle.remove()
    assert len(calls) <= 3
    assert count_correct(network, x_adv, wrong) == 0


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", ["ce", "dlr"])
def test_the_accuracy_is_that_of_torchattacks(norm: Norm, name: str) -> None:
    torchattacks = pytest.importorskip("torchattacks")
    network, x, y = train_network()
    epsilon, loss = EPSILONS[norm], {"ce": cross_entropy_loss, "dlr": dlr_loss}[name]
    ours = run_apgd(network, x, y, epsilon=epsilon, norm=norm, steps=50, loss=loss, generator=seeded())
    attack = torchattacks.APGD(network, norm=norm.capitalize(), eps=epsilon, steps=50, loss=name)
    with torch.random.fork_rng():
        theirs = attack(x, y)
    clean, robust = count_correct(network, x, y), count_correct(network, ours, y)
    assert robust < clean - 20
    assert abs(robust - count_correct(network, theirs, y)) <= 1
