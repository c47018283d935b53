"""torchattacks: its AutoAttack on our models, and our perturbations as one of its attacks."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from domainwise.integrations import check_perturbation, fit_perturbation
from domainwise.perturbations import Perturbation
from domainwise.perturbations.base import Norm

try:
    import torchattacks  # type: ignore[import-untyped, import-not-found, unused-ignore]
except ImportError as error:
    raise ImportError(
        "torchattacks is not installed; run: pip install --no-deps torchattacks (without its dependencies, because "
        "they pin requests to a version of 2021)"
    ) from error


class PerturbationAttack(torchattacks.attack.Attack):  # type: ignore[misc]
    """A perturbation as an attack of torchattacks: fit it on batches, then call it on images.

    Args:
        model: Maps images in [0, 1] to logits.
        perturbation: Any perturbation. One that is kept between batches, such as a `UniversalPerturbation`, is added as
            it is; a sample-wise one is computed for each batch.
        domain: Domain of the images, if the perturbation has several.
        steps: Number of ascent steps per batch.
    """

    def __init__(
        self, model: nn.Module, perturbation: Perturbation, *, domain: int | None = None, steps: int = 1
    ) -> None:
        check_perturbation(perturbation)
        super().__init__(type(perturbation).__name__, model)
        self.perturbation = perturbation
        self.domain = domain
        self.steps = steps
        self.supported_mode = ["default"]

    def fit(self, batches: Iterable[tuple[Tensor, Tensor]]) -> "PerturbationAttack":
        """Take `steps` ascent steps on each batch of images and labels."""
        training = self.model.training
        self._change_model_mode(training)
        self._perturb(batches, self.steps)
        self._recover_model_mode(training)
        return self

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        images, labels = images.to(self.device), labels.to(self.device)
        steps = 0 if self.perturbation.is_kept else self.steps
        return self._perturb([(images, labels)], steps)

    def _perturb(self, batches: Iterable[tuple[Tensor, Tensor]], steps: int) -> Tensor:
        # The attack may have moved since the last call, to the device of another model.
        perturbation = self.perturbation.to(self.device)
        return fit_perturbation(perturbation, self.get_logits, batches, self.domain, steps, self.device)


def build_autoattack(
    model: nn.Module, *, norm: Norm, epsilon: float, steps: int = 100, num_targets: int = 9, seed: int = 0
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the standard ensemble of AutoAttack: APGD-CE, targeted APGD-DLR, targeted FAB, and Square.

    Args:
        model: Maps images in [0, 1] to logits of at least 4 classes, in eval mode.
        steps: Steps of APGD and FAB. torchattacks would take 10, where AutoAttack takes 100.
        num_targets: Targets of APGD and FAB, the most likely other classes. torchattacks would take all of them.
    """

    def attack(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            num_classes = min(model(x[:1]).shape[1], num_targets + 1)
        name = {"linf": "Linf", "l2": "L2"}[norm]
        ensemble = torchattacks.AutoAttack(model, norm=name, eps=epsilon, n_classes=num_classes, seed=seed)
        for each in ensemble._autoattack.attacks:
            if not isinstance(each, torchattacks.Square):
                each.steps = steps
        # It seeds torch's own generator.
        with torch.random.fork_rng([x.device] if x.device.type == "cuda" else []):
            x_adv: Tensor = ensemble(x.contiguous(), y)
        return x_adv.detach()

    return attack
