"""Where the released code's AT and UAT live: images normalized with ImageNet's statistics."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm, Batches, joined
from domainwise.hparams import Hparams, Power, bounded, searched
from domainwise.perturbations import Perturbation

Model = Callable[[Tensor], Tensor]


class NormalizedSpace:
    """Between images in [0, 1] and normalized ones; three channels only, as in the released code.

    A radius means something else here: .1 is about .023 in pixels.
    """

    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        if len(input_shape) != 3 or input_shape[0] != 3:
            raise ValueError(f"space='normalized' is for images of three channels, not of shape {input_shape}")

    def bounds(self) -> tuple[Tensor, Tensor]:
        return self.enter(torch.zeros(3, 1, 1)), self.enter(torch.ones(3, 1, 1))

    def enter(self, x: Tensor) -> Tensor:
        mean, std = self._statistics(x)
        return (x - mean) / std

    def behind(self, model: Model) -> Model:
        """The model as a function of normalized images."""

        def on_normalized(x: Tensor) -> Tensor:
            mean, std = self._statistics(x)
            return model(x * std + mean)

        return on_normalized

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = (torch.tensor(values, dtype=x.dtype, device=x.device) for values in (self.mean, self.std))
        return mean.reshape(-1, 1, 1), std.reshape(-1, 1, 1)


@dataclass(frozen=True)
class AdversarialHparams(Hparams):
    """What the family has in common.

    variant: settings that go together, `standard`, `paper` (Algorithms 1 and 2 to the letter) or `released` (what the
        authors' code does).
    epsilon, step_size, norm, ascent, loss_cap: as for `Perturbation`.
    schedule: `two_pass` attacks and then trains; `simultaneous` trains once and lets the same backward pass move the
        perturbation up afterwards.
    order: `joint`, all domains ascend and the network steps once; `sequential`, domain after domain.
    objective: the `mean` over all samples, or the `sum` over domains of each one's mean.
    clean_weight: of the loss on unperturbed images; 1 weighs them like the perturbed ones.
    """

    variant: Literal["standard", "paper", "released"] = "standard"
    epsilon: float = searched(0.1, Power(10, -1, 2))
    step_size: float = 0.1
    norm: Literal["l2", "linf"] = "l2"
    ascent: Literal["normalized", "gradient", "sign"] = "normalized"
    loss_cap: float | None = None
    schedule: Literal["two_pass", "simultaneous"] = "two_pass"
    order: Literal["joint", "sequential"] = "joint"
    objective: Literal["mean", "sum"] = "mean"
    clean_weight: float = bounded(0.0, low=0)

    def geometry(self) -> dict[str, Any]:
        """The settings that every perturbation takes."""
        return {name: getattr(self, name) for name in ("epsilon", "step_size", "norm", "ascent", "loss_cap")}


PAPER: Mapping[str, Any] = {"ascent": "gradient", "order": "sequential"}
RELEASED: Mapping[str, Any] = {"objective": "sum", "loss_cap": 2.0}


def checked(perturbation: Perturbation, hparams: AdversarialHparams) -> Perturbation:
    """The perturbation, if it can follow the schedule that was asked for."""
    if hparams.schedule == "simultaneous":
        if not perturbation.is_kept:
            raise ValueError(
                "schedule='simultaneous' needs a perturbation that is kept from update to update: uat, ldat, or mat "
                "with weights='domain'. Use schedule='two_pass'."
            )
        if hparams.loss_cap is not None:
            raise ValueError(
                "schedule='simultaneous' has no inner loss to cap: give loss_cap=None, or schedule='two_pass'"
            )
    return perturbation


def image_shape(algorithm: Algorithm) -> tuple[int, ...]:
    """The shape that a perturbation must have."""
    if algorithm.input_shape is None:
        name = type(algorithm).__name__
        raise ValueError(f"{name} must know the shape of an image: give input_shape=(channels, height, width)")
    return algorithm.input_shape


def update(
    algorithm: Algorithm,
    hparams: AdversarialHparams,
    perturbation: Perturbation,
    batches: Batches,
    *,
    steps: int = 1,
    space: NormalizedSpace | None = None,
) -> dict[str, float]:
    """One update of any method of the family. The loss returned is the mean cross-entropy that was trained on.

    Args:
        steps: of ascent in each attack.
        space: where the perturbation is added, if that is not to the images themselves.
    """
    losses: list[Tensor] = []
    for x, y, domain in _groups(batches, algorithm.num_domains, hparams.order):
        model: Model = algorithm.network
        if space is not None:
            x, model = space.enter(x), space.behind(model)
        if hparams.schedule == "two_pass":
            x_adv = perturbation.attack(x, domain, partial(_loss_of_each, model, y), steps)
        else:
            x_adv = perturbation(x, domain)
        each = _with_clean(model, x_adv, x, y, hparams.clean_weight)
        counts = F.one_hot(domain, algorithm.num_domains).sum(0).to(each.dtype)
        share = counts / len(y) if hparams.objective == "mean" else counts.sign()
        algorithm.descend_((each * (share / counts)[domain]).sum())
        if hparams.schedule == "simultaneous":
            # Each domain ascends its own mean, of which the loss held only a share. (A domain that is absent has
            # share 0 and no gradient; its 0 times infinity is not a direction, so it stays.)
            perturbation.ascend_((1 + hparams.clean_weight) / share)
        losses.append(each.detach())
    return {"loss": torch.cat(losses).mean().item()}


def describe(perturbation: Perturbation, leading: int = 5) -> dict[str, Any]:
    """Norm and leading singular values (mean over channels) of each domain's perturbation, for the record."""
    if not perturbation.is_kept:
        return {}
    with torch.no_grad():
        delta = perturbation.delta().float().cpu()
    described: dict[str, Any] = {"norm": delta.flatten(1).norm(dim=1).tolist()}
    if delta.ndim == 4:
        described["singular_values"] = torch.linalg.svdvals(delta).mean(dim=1)[:, :leading].tolist()
    return described


def _groups(batches: Batches, num_domains: int, order: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """What one step of the network sees, as (x, y, domain): all domains at once, or each by itself."""
    everything = joined(batches, num_domains)
    if order == "joint":
        yield everything
        return
    for index, (x, y) in enumerate(batches):
        if len(y):
            yield x, y, torch.full((len(y),), index, device=x.device)


def _loss_of_each(model: Model, y: Tensor, x: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def _with_clean(model: Model, x_adv: Tensor, x: Tensor, y: Tensor, clean_weight: float) -> Tensor:
    """The loss of each sample, perturbed and, where it has a weight, also as it is; one forward for both."""
    if clean_weight == 0:
        return _loss_of_each(model, y, x_adv)
    perturbed, clean = _loss_of_each(model, y.repeat(2), torch.cat([x_adv, x])).chunk(2)
    return (perturbed + clean_weight * clean) / (1 + clean_weight)
