"""AT: one perturbation a sample, made anew for every batch (Madry et al. 2017)."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from domainwise.perturbations.base import Perturbation, check_choice, direction, draw, project, random_point

Start = Literal["random", "zero", "cube"]
Over = Literal["sample", "domain"]


class SampleWisePerturbation(Perturbation):
    """Every sample has its own ball, and nothing is kept between batches. One step is FGSM, several are PGD.

    Args:
        start: `"random"`, a uniform draw from the ball; `"zero"`; or `"cube"`, uniform in [-epsilon, epsilon] an
            entry and neither projected nor clipped before the first step, as the paper's released code does.
        over: norms are taken over each `"sample"`, or over all of a `"domain"`'s samples in the batch as one vector,
            as in the released code.
    """

    def __init__(
        self, shape: Sequence[int], *, start: Start = "random", over: Over = "sample", **settings: Any
    ) -> None:
        super().__init__(shape, **settings)
        check_choice("start", start, Start)
        check_choice("over", over, Over)
        self.start: Start = start
        self.over: Over = over

    # Clipping is part of each step, so inside the loop the gradient is taken at the clipped image itself.
    clips_in_attack = False

    @property
    def is_kept(self) -> bool:
        return False

    def _start(self, x: Tensor) -> tuple[Tensor, ...]:
        shape = (len(x), *self.shape)
        if self.start == "zero":
            delta = torch.zeros_like(x)
        elif self.start == "cube":
            delta = (2 * draw("uniform", shape, like=x, generator=self.generator) - 1) * self.epsilon
        else:
            delta = self._clipped_offset(
                x, random_point(shape, self.epsilon, self.norm, like=x, generator=self.generator)
            )
        return (delta.requires_grad_(),)

    def _offset(self, domain: Tensor, point: tuple[Tensor, ...]) -> Tensor:
        return point[0]

    def _ascend(
        self, point: tuple[Tensor, ...], gradients: Sequence[Tensor], batch: tuple[Tensor, Tensor] | None
    ) -> None:
        assert batch is not None
        x, domain = batch
        (delta,), (gradient,) = point, gradients
        if self.over == "sample":
            moved = self._moved(delta, gradient, batch_dims=1)
        else:
            moved = delta.clone()
            for each in range(self.num_domains):
                if (rows := domain == each).any():
                    moved[rows] = self._moved(delta[rows], gradient[rows], batch_dims=0)
        delta.copy_(self._clipped_offset(x, moved))

    def _moved(self, delta: Tensor, gradient: Tensor, batch_dims: int) -> Tensor:
        step = self.step_size * direction(gradient, self.ascent, self.norm, batch_dims)
        return project(delta + step, self.epsilon, self.norm, batch_dims)

    def _clipped_offset(self, x: Tensor, delta: Tensor) -> Tensor:
        """The part of the offset that survives clipping; it is no longer than the whole."""
        image = self.space.image(x)
        return self.space.clip(image + delta) - image
