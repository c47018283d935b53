"""Attacks on a model: FGSM and PGD are those of torchattacks, restarts help, own attacks are checked."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacked_network import SHAPE, count_correct, train_network
from domainwise.errors import DomainwiseError
from domainwise.perturbations import SampleWisePerturbation
from domainwise.perturbations.base import Norm, compute_norm
from domainwise.training.attacks import (
    ATTACK_NAMES,
    AttackName,
    AttackSettings,
    ModelAttack,
    adapt_attack,
    attack_in_turns,
    build_attack,
    check_num_classes,
    takes_epsilon,
)

CPU = torch.device("cpu")
EPSILONS: dict[Norm, float] = {"linf": 12 / 255, "l2": 0.5}


def attack(
    name: AttackName | ModelAttack, norm: Norm = "linf", epsilon: float | None = 12 / 255, **more: Any
) -> Tensor:
    """Attack the trained network."""
    network, x, y = train_network()
    settings = AttackSettings(name, epsilon, norm, **more)
    return build_attack(network, settings, SHAPE, CPU, fit_batches=[(x, y)])(x, y)


def robust(name: AttackName | ModelAttack, *args: Any, **more: Any) -> int:
    network, _, y = train_network()
    return count_correct(network, attack(name, *args, **more), y)


@pytest.fixture
def torchattacks() -> Any:
    return pytest.importorskip("torchattacks")


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", [name for name in ATTACK_NAMES if name != "autoattack"])
def test_every_attack_stays_in_its_ball_and_costs_accuracy(name: AttackName, norm: Norm) -> None:
    network, x, y = train_network()
    epsilon = EPSILONS[norm]
    x_adv = attack(name, norm, epsilon, steps=6)
    assert compute_norm(x_adv - x, norm).amax() <= epsilon * (1 + 1e-5)
    low, high = x_adv.aminmax()
    assert low >= 0
    assert high <= 1
    assert count_correct(network, x_adv, y) < count_correct(network, x, y)
    assert torch.equal(attack(name, norm, 0.0), x)


def test_fgsm_is_that_of_torchattacks(torchattacks: Any) -> None:
    network, x, y = train_network()
    for epsilon in (4 / 255, 12 / 255, 0.2):
        theirs = torchattacks.FGSM(network, eps=epsilon)(x, y)
        ours = attack("fgsm", epsilon=epsilon)
        is_attacked = (ours != x).flatten(1).any(1)
        assert torch.allclose(ours[is_attacked], theirs[is_attacked], atol=1e-7)
        both = count_correct(network, theirs[is_attacked], y[is_attacked])
        assert count_correct(network, ours, y) == both
        # Images that are wrong anyway are left alone.
        assert int(is_attacked.sum()) == count_correct(network, x, y)


def test_pgd_from_the_image_takes_the_steps_of_torchattacks(torchattacks: Any) -> None:
    network, x, y = train_network()
    epsilon = 12 / 255
    pgd = torchattacks.PGD(network, eps=epsilon, alpha=epsilon / 4, steps=20, random_start=False)
    ours = SampleWisePerturbation(
        SHAPE, epsilon=epsilon, step_size=epsilon / 4, norm="linf", ascent="sign", start="zero"
    ).attack(x, 0, lambda x: nn.functional.cross_entropy(network(x), y, reduction="none"), 20)
    # Rounding may turn the sign of a gradient close to zero.
    assert (ours - pgd(x, y)).abs().gt(1e-6).float().mean() < 0.01


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("part", [0.5, 1.0, 1.5])
def test_pgd_leaves_the_accuracy_of_torchattacks(torchattacks: Any, norm: Norm, part: float) -> None:
    network, x, y = train_network()
    epsilon = part * EPSILONS[norm]
    theirs = torchattacks.PGD if norm == "linf" else torchattacks.PGDL2
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x_adv = theirs(network, eps=epsilon, alpha=epsilon / 4, steps=20)(x, y)
    assert abs(robust("pgd", norm, epsilon) - count_correct(network, x_adv, y)) <= 1


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_apgd_leaves_no_more_than_pgd(norm: Norm) -> None:
    pgd = robust("pgd", norm, EPSILONS[norm], steps=40)
    apgd = robust("apgd", norm, EPSILONS[norm], steps=40)
    assert apgd <= pgd + 1
    assert robust("apgd-t", norm, EPSILONS[norm], steps=40) <= apgd + 1


def test_restarts_can_only_leave_less_and_differ() -> None:
    one, three = (attack("pgd", steps=2, step_size=0.01, restarts=restarts) for restarts in (1, 3))
    network, _, y = train_network()
    assert count_correct(network, three, y) < count_correct(network, one, y)
    with torch.no_grad():
        wrong_after_one = network(one).argmax(1) != y
    assert torch.equal(one[wrong_after_one], three[wrong_after_one])


def test_step_size_and_steps_reach_the_attack() -> None:
    _, x, _ = train_network()
    for name in ("pgd", "sample", "domain"):
        short = attack(name, steps=1, step_size=0.001)  # type: ignore[arg-type]
        long = attack(name, steps=1, step_size=0.5)  # type: ignore[arg-type]
        assert not torch.equal(short, long)
    assert torch.equal(attack("fgsm", steps=7, step_size=0.5), attack("fgsm"))
    assert (attack("sample", steps=1) - x).abs().amax() == pytest.approx(12 / 255, abs=1e-6)


def test_attacks_in_turns_only_see_what_is_still_right() -> None:
    network, x, y = train_network()
    seen = []

    def halve(x: Tensor, y: Tensor) -> Tensor:
        """Ruin every second image."""
        seen.append(len(x))
        return torch.where(torch.arange(len(x))[:, None, None, None] % 2 == 0, torch.zeros_like(x), x)

    clean = count_correct(network, x, y)
    x_adv = attack_in_turns(network, [halve, halve])(x, y)
    assert seen[0] == clean
    assert clean / 2 <= seen[1] < clean
    assert count_correct(network, x_adv, y) < seen[1]


def push(model: nn.Module, x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    """Make images brighter."""
    return (x + epsilon).clamp(0, 1)


def test_an_own_attack_is_called_with_the_model_and_epsilon() -> None:
    _, x, _ = train_network()
    x_adv = attack(push, epsilon=0.25)
    assert (x_adv - x).amax() == pytest.approx(0.25)
    assert takes_epsilon(push)
    once = attack(lambda model, x, y: (x - 0.1).clamp(0, 1), epsilon=None)
    assert (once - x).amin() == pytest.approx(-0.1, abs=1e-6)
    assert not takes_epsilon(lambda model, x, y: x)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (lambda model, x, y, epsilon: x[:, :1], r"must return images of shape \(\d+, 3, 8, 8\), got shape \(\d+, 1, 8"),
        (lambda model, x, y, epsilon: None, "got type NoneType"),
        (lambda model, x, y, epsilon: x.unknown, "the custom attack failed: .*no attribute 'unknown'"),
        (lambda model, x, y, epsilon: x + 5, r"images in \[0, 1\], got values from"),
        (lambda model, x, y, epsilon: x * torch.nan, r"images in \[0, 1\]"),
        (lambda model, x, y, epsilon: x.mul_(0.5), "linf ball of radius 0.1, got an offset of norm 0.5"),
        (torch.ones(1).add, "the custom attack failed: "),
        (
            lambda model, x, y, epsilon: push(model, x, y, 2 * epsilon),
            "linf ball of radius 0.1, got an offset of norm 0.2",
        ),
    ],
)
def test_own_attacks_are_checked(own: ModelAttack, message: str) -> None:
    with pytest.raises(DomainwiseError, match=message):
        attack(own, epsilon=0.1)


def test_rounding_at_a_large_radius_is_no_step_out_of_the_ball() -> None:
    def shift(model: nn.Module, x: Tensor, y: Tensor, epsilon: float) -> Tensor:
        return x + (1 + 2e-5) * epsilon / x[0].numel() ** 0.5

    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x, y = torch.full((2, 3, 224, 224), 0.5), torch.zeros(2, dtype=torch.int64)
    x_adv = build_attack(model, AttackSettings(shift, 14.0, "l2"), x.shape[1:], CPU)(x, y)
    assert compute_norm(x_adv - x, "l2").amax() > 14 + 1e-5


def test_own_attacks_draw_from_the_seed_and_leave_the_random_state_alone() -> None:
    def scatter(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return torch.rand_like(x)

    before = torch.get_rng_state()
    one, again, other = (attack(scatter, epsilon=None, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_attacks_of_other_libraries_are_adapted(torchattacks: Any) -> None:
    other = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
    fgsm = torchattacks.FGSM(other, eps=12 / 255)
    theirs = adapt_attack(fgsm, "linf")
    assert not takes_epsilon(theirs)
    assert robust(theirs, epsilon=None) == robust("fgsm")
    assert fgsm.model is other

    class Mine(torchattacks.FGSM):  # type: ignore[misc]
        pass

    assert robust(adapt_attack(Mine(other, eps=12 / 255), "linf"), epsilon=None) == robust("fgsm")
    with pytest.raises(DomainwiseError, match=r"a function of \(model, x, y\).*got float"):
        adapt_attack(0.5, "linf")
    with pytest.raises(DomainwiseError, match="must be an object, got the class FGSM"):
        adapt_attack(torchattacks.FGSM, "linf")


def test_attacks_of_foolbox_have_the_reported_norm() -> None:
    foolbox = pytest.importorskip("foolbox")
    assert takes_epsilon(adapt_attack(foolbox.attacks.L2PGD(), "l2"))
    with pytest.raises(DomainwiseError, match="L2ProjectedGradientDescentAttack of foolbox is not an attack in linf"):
        adapt_attack(foolbox.attacks.L2PGD(), "linf")
    with pytest.raises(DomainwiseError, match="unknown distance"):
        adapt_attack(foolbox.attacks.LinearSearchBlendedUniformNoiseAttack(), "linf")


def test_callables_without_a_signature_take_no_epsilon() -> None:
    assert not takes_epsilon(max)


def test_too_few_classes() -> None:
    check_num_classes("pgd", 2)
    check_num_classes("apgd", 3)
    check_num_classes("autoattack", 4)
    with pytest.warns(UserWarning, match="DLR loss needs at least 3 classes, got 2; apgd ascends the cross-"):
        check_num_classes("apgd", 2)
    for name in ("apgd-t", "autoattack"):
        with pytest.raises(DomainwiseError, match=f"'{name}' needs at least 4 classes.*got 3; use --attack apgd"):
            check_num_classes(name, 3)  # type: ignore[arg-type]


def test_apgd_of_two_classes_ascends_the_cross_entropy() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 2)).eval()
    x = torch.rand(20, *SHAPE, generator=torch.Generator().manual_seed(0))
    y = network(x).argmax(1)
    x_adv = build_attack(network, AttackSettings("apgd", 0.5, "linf", steps=10), SHAPE, CPU)(x, y)
    assert count_correct(network, x_adv, y) == 0


def test_autoattack_is_an_ensemble_of_torchattacks(torchattacks: Any) -> None:
    """At a radius where APGD succeeds on all images, so that the slow attacks of the ensemble have none left."""
    network, x, y = train_network()
    before = torch.get_rng_state()
    x_adv = attack("autoattack", epsilon=0.25, steps=10)
    assert torch.equal(torch.get_rng_state(), before)
    assert count_correct(network, x_adv, y) == 0
    assert (x_adv - x).abs().amax() <= 0.25 + 1e-6


@pytest.mark.parametrize(("num_classes", "num_targets"), [(5, 4), (65, 9)])
def test_autoattack_targets_the_9_most_likely_other_classes(
    torchattacks: Any, num_classes: int, num_targets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets: list[int] = []

    def note(ensemble: Any, x: Tensor, y: Tensor) -> Tensor:
        targets.extend(
            each.n_target_classes for each in ensemble._autoattack.attacks if hasattr(each, "n_target_classes")
        )
        return x

    monkeypatch.setattr(torchattacks.AutoAttack, "forward", note)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, num_classes)).eval()
    _, x, _ = train_network()
    with torch.no_grad():
        y = model(x).argmax(1)
    build_attack(model, AttackSettings("autoattack", 0.1, "linf"), SHAPE, CPU)(x, y)
    assert targets == [num_targets] * 2


@pytest.mark.slow
def test_the_whole_ensemble_leaves_no_more_than_pgd(torchattacks: Any) -> None:
    assert robust("autoattack") <= robust("pgd")


def test_without_torchattacks_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchattacks", None)
    monkeypatch.delitem(sys.modules, "domainwise.integrations.torchattacks", raising=False)
    with pytest.raises(DomainwiseError, match=r"pip install --no-deps torchattacks.* or use --attack apgd"):
        attack("autoattack")


@pytest.mark.parametrize("more", [{"steps": 0}, {"restarts": 0}])
def test_settings_are_checked(more: dict[str, int]) -> None:
    with pytest.raises(DomainwiseError, match="at least 1"):
        AttackSettings("pgd", 0.1, **more)  # type: ignore[arg-type]
