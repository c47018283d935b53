"""UAT: one perturbation a domain, kept over updates (Moosavi-Dezfooli et al. 2017, a domain at a time)."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from domainwise.perturbations.base import Norm, Perturbation, check_choice, direction, draw, of_each, project

KeptStart = Literal["projected", "unprojected"]


class UniversalPerturbation(Perturbation):
    """All samples of a domain share one perturbation, which lives on from batch to batch.

    Args:
        start: Gaussian noise, `"projected"` onto the ball, or the released code's N(0, 1) * 2 epsilon - epsilon,
            `"unprojected"`: outside the ball until its first step.
    """

    def __init__(self, shape: Sequence[int], *, start: KeptStart = "projected", **settings: Any) -> None:
        super().__init__(shape, **settings)
        self.deltas = nn.Parameter(kept_start((self.num_domains, *self.shape), start, self, batch_dims=1))

    def _offset(self, domain: Tensor, point: tuple[Tensor, ...]) -> Tensor:
        return of_each(point[0], domain)

    def _ascend(
        self, point: tuple[Tensor, ...], gradients: Sequence[Tensor], batch: tuple[Tensor, Tensor] | None
    ) -> None:
        step = self.step_size * direction(gradients[0], self.ascent, self.norm)
        self.deltas.copy_(stepped(self.deltas, step, self.epsilon, self.norm, batch_dims=1))

    def _confine(self) -> None:
        self.deltas.copy_(project(self.deltas, self.epsilon, self.norm))


def kept_start(shape: tuple[int, ...], start: KeptStart, of: Perturbation, batch_dims: int) -> Tensor:
    """The Gaussian start of perturbations that are kept."""
    check_choice("start", start, KeptStart)
    noise = draw("normal", shape, like=torch.empty(0), generator=of.generator)
    if start == "unprojected":
        return noise * 2 * of.epsilon - of.epsilon
    return project(noise, of.epsilon, of.norm, batch_dims)


def stepped(points: Tensor, step: Tensor, epsilon: float, norm: Norm, batch_dims: int) -> Tensor:
    """Points moved and projected; one with no step stays to the bit, even outside the ball."""
    has_step = (step != 0).reshape(*step.shape[:batch_dims], -1).any(-1)
    has_step = has_step.reshape(*has_step.shape, *[1] * (points.ndim - batch_dims))
    return torch.where(has_step, project(points + step, epsilon, norm, batch_dims), points)
