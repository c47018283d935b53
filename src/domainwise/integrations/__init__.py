"""Perturbations in training loops and attacks of other libraries. Each module needs its own library."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.perturbations import Perturbation


def check_perturbation(value: Any) -> None:
    if not isinstance(value, Perturbation):
        raise TypeError(f"perturbation must be a Perturbation, such as MultiplePerturbation(...), got {value!r}")


def fit_perturbation(
    perturbation: Perturbation,
    model: Callable[[Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    domain: int | None,
    steps: int,
    device: torch.device,
) -> Tensor:
    """Take `steps` ascent steps of the cross-entropy on each batch, and return the last one perturbed."""
    x_adv = torch.empty(0)
    for x, y in batches:
        x_adv = perturbation.attack(x.to(device), domain, partial(_compute_losses, model, y.to(device)), steps)
    return x_adv


def _compute_losses(model: Callable[[Tensor], Tensor], y: Tensor, x: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")
