"""Attacks on a model: domain-wise and sample-wise ascent, and those that robustness is compared by.

All of them ascend inside a ball around each image, and images stay in [0, 1]. `domain` and `sample` take steps of
2.5 epsilon / steps, so that they can cross the ball. The settings of the others are those of the literature: `fgsm`
takes one step from the image (Goodfellow et al. 2014), `pgd` 20 steps of epsilon / 4 from a random start (Madry et al.
2017, as in OOD-Adv), `apgd` and `autoattack` 100 steps (Croce & Hein 2020, as in RobustBench).
"""

import copy
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.errors import DomainwiseError
from domainwise.perturbations import SampleWisePerturbation, UniversalPerturbation
from domainwise.perturbations.base import Norm, compute_norm
from domainwise.plugins import explain_failure
from domainwise.training.apgd import dlr_loss, run_apgd, targeted_dlr_loss

AttackName = Literal["domain", "sample", "fgsm", "pgd", "apgd", "apgd-t", "autoattack"]
ATTACK_NAMES: tuple[AttackName, ...] = get_args(AttackName)
# Maps images (b, C, H, W) and labels (b,) to perturbed images.
Attack = Callable[[Tensor, Tensor], Tensor]
# The same for any model: (model, x, y), or (model, x, y, epsilon).
ModelAttack = Callable[..., Tensor]

_REACH = 2.5
_PGD_STEP = 0.25
_STEPS: Mapping[AttackName, int] = {"fgsm": 1, "apgd": 100, "apgd-t": 100, "autoattack": 100}
_DEFAULT_STEPS = 20
# The attacks that a setting changes.
_USERS: Mapping[str, tuple[AttackName, ...]] = {
    "steps": ("domain", "sample", "pgd", "apgd", "apgd-t", "autoattack"),
    "step_size": ("domain", "sample", "pgd"),
    "restarts": ("sample", "pgd", "apgd", "apgd-t"),
}
# The difference of logits ratio is taken over the third largest logit, if it is targeted over the fourth as well.
_MIN_CLASSES: Mapping[str, int] = {"apgd": 3, "apgd-t": 4, "autoattack": 4}
_NUM_TARGETS = 9
# How far the images of someone else's attack may be outside of their bounds.
_ROUNDING = 1e-5
# How much longer than the radius their offset may be: its norm is a sum of many squares in single precision.
_NORM_ROUNDING = 1e-4


@dataclass(frozen=True)
class AttackSettings:
    """One attack.

    Args:
        attack: `domain` adds a single perturbation to all images; all others perturb every image separately. Or an own
            attack, as `adapt_attack` returns it.
        epsilon: Radius of the ball; None for a custom attack that is not called with one.
        norm: Norm of the ball. Steps go along the signs of the gradient for linf, and along the gradient for l2.
        steps: Number of ascent steps (default: 20; 100 for apgd, apgd-t and autoattack). `fgsm` always takes one.
        step_size: Length of a step of `domain`, `sample` and `pgd` (default: see above).
        restarts: Number of random starts of `sample`, `pgd`, `apgd` and `apgd-t`. The first that succeeds counts.
        seed: Seed for the random starts.
    """

    attack: AttackName | ModelAttack
    epsilon: float | None
    norm: Norm = "l2"
    steps: int | None = None
    step_size: float | None = None
    restarts: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise DomainwiseError(f"an attack needs at least 1 step, got {self.steps}")
        if self.restarts < 1:
            raise DomainwiseError(f"the number of restarts must be at least 1, got {self.restarts}")
        if self.step_size is not None and self.step_size <= 0:
            raise DomainwiseError(f"the step size of an attack must be above 0, got {self.step_size:g}")
        # What torch accepts.
        if not -(2**63) <= self.seed < 2**64:
            raise DomainwiseError(f"the seed must be at least -2^63 and below 2^64, got {self.seed}")


def build_attack(
    model: nn.Module,
    settings: AttackSettings,
    shape: Sequence[int],
    device: torch.device,
    fit_batches: Iterable[tuple[Tensor, Tensor]] = (),
) -> Attack:
    """Return an attack on a model in eval mode.

    Args:
        shape: shape of one image.
        fit_batches: images and labels that the single perturbation of `domain` is fitted on: one step per batch, over
            and over.
    """
    name, epsilon, norm = settings.attack, settings.epsilon, settings.norm
    # A ball of radius 0 leaves nothing to ascend.
    if epsilon == 0:
        return lambda x, y: x
    if not isinstance(name, str):
        return attack_in_turns(model, [partial(_run_own_attack, model, name, settings)])
    if epsilon is None:
        raise DomainwiseError(f"attack {name!r} needs an epsilon")
    steps = 1 if name == "fgsm" else settings.steps or _STEPS.get(name, _DEFAULT_STEPS)
    generator = torch.Generator().manual_seed(settings.seed)
    if name in ("apgd", "apgd-t"):
        ascend = partial(run_apgd, model, epsilon=epsilon, norm=norm, steps=steps, generator=generator)
        return _combine_apgd(model, ascend, settings.restarts, is_targeted=name == "apgd-t")
    if name == "autoattack":
        run = import_autoattack()(
            model, norm=norm, epsilon=epsilon, steps=steps, num_targets=_NUM_TARGETS, seed=settings.seed
        )
        return attack_in_turns(model, [run])
    default_size = {"fgsm": epsilon, "pgd": _PGD_STEP * epsilon}.get(name, _REACH * epsilon / steps)
    shared: dict[str, Any] = {
        "epsilon": epsilon,
        "step_size": default_size if settings.step_size is None or name == "fgsm" else settings.step_size,
        "norm": norm,
        "generator": generator,
    }
    if name == "domain":
        universal = UniversalPerturbation(shape, **shared).to(device)
        for x, y in islice(cycle(fit_batches), steps):
            universal.attack(x, 0, _loss(model, y))
        return lambda x, y: universal.attack(x, 0, _loss(model, y), 0)
    perturbation = SampleWisePerturbation(shape, start="zero" if name == "fgsm" else "random", **shared).to(device)

    def attack(x: Tensor, y: Tensor) -> Tensor:
        return perturbation.attack(x, 0, _loss(model, y), steps)

    if name == "sample" and settings.restarts == 1:
        return attack
    return attack_in_turns(model, [attack] * (1 if name == "fgsm" else settings.restarts))


def attack_in_turns(model: nn.Module, attacks: Iterable[Attack]) -> Attack:
    """Return the worst case of several attacks: each is tried on the images that are still classified correctly.

    Images that are misclassified without an attack are left alone, as in RobustBench.
    """
    attacks = tuple(attacks)

    def attack(x: Tensor, y: Tensor) -> Tensor:
        x_adv = x.clone()
        for each in attacks:
            with torch.no_grad():
                rows = model(x_adv).argmax(1) == y
            if not rows.any():
                break
            x_adv[rows] = each(x[rows], y[rows])
        return x_adv

    return attack


def import_autoattack() -> Callable[..., Attack]:
    """Return `build_autoattack`, or raise an error without its library."""
    try:
        from domainwise.integrations.torchattacks import build_autoattack
    except ImportError as error:
        raise DomainwiseError(f"{error}; or use --attack apgd") from None
    return build_autoattack


def check_num_classes(attack: AttackName | ModelAttack, num_classes: int) -> None:
    """Raise an error if an attack is not defined for so few classes; warn if a part of it is not."""
    needed = _MIN_CLASSES.get(attack, 0) if isinstance(attack, str) else 0
    if num_classes >= needed:
        return
    if attack != "apgd":
        raise DomainwiseError(
            f"attack {attack!r} needs at least {needed} classes, because of its targeted DLR loss, got {num_classes}; "
            "use --attack apgd"
        )
    warnings.warn(
        f"the DLR loss needs at least {needed} classes, got {num_classes}; apgd ascends the cross-entropy only",
        stacklevel=3,
    )


def check_used(settings: AttackSettings, attacks: Mapping[str, AttackName | ModelAttack]) -> None:
    """Raise an error if a setting is given that has no effect on any of the attacks, which are given by label."""
    for name, users in _USERS.items():
        if getattr(settings, name) != getattr(AttackSettings, name) and not any(
            attack in users for attack in attacks.values()
        ):
            raise DomainwiseError(f"{name} has no effect on {', '.join(attacks)}; it is for {', '.join(users)}")


def adapt_attack(attack: Any, norm: Norm) -> ModelAttack:
    """Return an attack as a function of (model, x, y), or of (model, x, y, epsilon) if it takes an epsilon.

    Args:
        attack: such a function, an attack object of torchattacks, or one of foolbox.
        norm: norm that the attack is reported with.
    """
    if inspect.isclass(attack):
        raise DomainwiseError(f"an attack must be an object, got the class {attack.__name__}; create one of it first")
    libraries = {base.__module__.partition(".")[0] for base in type(attack).__mro__}
    if "foolbox" in libraries:
        from domainwise.integrations.foolbox import adapt_foolbox

        return adapt_foolbox(attack, norm)
    if "torchattacks" in libraries:

        def run(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            own = copy.copy(attack)
            own.set_model(model)
            own.set_device(x.device)
            x_adv: Tensor = own(x, y)
            return x_adv

        return run
    if not callable(attack):
        raise DomainwiseError(
            "an attack must be a function of (model, x, y) or (model, x, y, epsilon), or an attack of torchattacks or "
            f"foolbox, got {type(attack).__name__}"
        )
    function: ModelAttack = attack
    return function


def takes_epsilon(attack: AttackName | ModelAttack) -> bool:
    """Return whether an attack is called once per epsilon, rather than once."""
    if isinstance(attack, str):
        return True
    try:
        return "epsilon" in inspect.signature(attack).parameters
    except ValueError:
        # Callables written in C may have no signature.
        return False


def _run_own_attack(model: nn.Module, attack: ModelAttack, settings: AttackSettings, x: Tensor, y: Tensor) -> Tensor:
    """Run someone else's attack, and check that it stays in its bounds."""
    norm, epsilon = settings.norm, settings.epsilon
    with (
        explain_failure("the custom attack failed", getattr(attack, "__module__", None) or ""),
        # Other libraries draw random starts from torch's own generator, and some seed it.
        torch.random.fork_rng([x.device] if x.device.type == "cuda" else []),
    ):
        torch.manual_seed(settings.seed)
        # A copy, because an attack that changes its images in place would seem to stay where it was.
        x_adv = attack(model, x.clone(), y, **({} if epsilon is None else {"epsilon": epsilon}))
    if not isinstance(x_adv, Tensor) or x_adv.shape != x.shape:
        given = f"shape {tuple(x_adv.shape)}" if isinstance(x_adv, Tensor) else f"type {type(x_adv).__name__}"
        raise DomainwiseError(f"a custom attack must return images of shape {tuple(x.shape)}, got {given}")
    x_adv = x_adv.detach().to(x)
    low, high = x_adv.amin(), x_adv.amax()
    if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
        raise DomainwiseError(f"a custom attack must return images in [0, 1], got values from {low:g} to {high:g}")
    if epsilon is not None:
        reached = float(compute_norm(x_adv - x, norm).amax())
        if reached > (1 + _NORM_ROUNDING) * epsilon + _ROUNDING:
            raise DomainwiseError(
                f"a custom attack must stay in the {norm} ball of radius {epsilon:g}, got an offset of norm {reached:g}"
            )
    return x_adv


def _combine_apgd(model: nn.Module, ascend: Callable[..., Tensor], restarts: int, *, is_targeted: bool) -> Attack:
    """Return the worst case of APGD on the cross-entropy, and on the DLR loss: untargeted, or once per likely class."""

    def ascend_to_class(number: int, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            classes = model(x).argsort(1, descending=True)
        others = classes[classes != y[:, None]].reshape(len(x), -1)
        return ascend(x, y, loss=targeted_dlr_loss, target=others[:, number])

    def attack(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            num_classes = model(x[:1]).shape[1]
        attacks: list[Attack] = [ascend]
        if is_targeted:
            attacks += [partial(ascend_to_class, number) for number in range(min(_NUM_TARGETS, num_classes - 1))]
        elif num_classes >= _MIN_CLASSES["apgd"]:
            attacks.append(partial(ascend, loss=dlr_loss))
        return attack_in_turns(model, attacks * restarts)(x, y)

    return attack


def _loss(model: nn.Module, y: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: F.cross_entropy(model(x), y, reduction="none")
