"""AT: one perturbation per sample, recomputed for every batch (Madry et al. 2017)."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from domainwise.perturbations.base import (
    Adversary,
    Ascent,
    Bound,
    Norm,
    Perturbation,
    Reduction,
    compute_direction,
    compute_norm,
    draw_in_ball,
    draw_noise,
    project,
    scale_into_ball,
)
from domainwise.perturbations.checks import check_choice
from domainwise.perturbations.low_rank import check_rank, draw_factors, truncate_rank, warn_of_full_rank
from domainwise.perturbations.priors import Prior

SampleStart = Literal["random", "zero", "cube"]
Over = Literal["sample", "domain"]


class SampleWisePerturbation(Perturbation):
    """One perturbation per sample; nothing is kept between batches. One step is FGSM, several are PGD (in linf).

    Args:
        start: `"random"` draws uniformly from the ball; `"zero"`; `"cube"` draws each entry uniformly from
            [-epsilon, epsilon] and neither projects nor clips before the first step, as in the paper's released code.
        over: Take norms over each `"sample"`, or over all samples of a `"domain"` in the batch as one vector, as in the
            released code.
        rank: Largest rank of each channel of a perturbation; None: no limit. One step from zero is then the strongest
            perturbation of this rank in l2, to first order (LoRa-PGD, arXiv 2410.12607, ascends its factors instead).

    All other arguments: see `Perturbation`.
    """

    # Clipping is part of each step, so inside the loop the gradient is already taken at the clipped image.
    clips_in_attack = False

    def __init__(
        self,
        shape: Sequence[int],
        *,
        epsilon: float | str,
        step_size: float | None = None,
        num_domains: int = 1,
        start: SampleStart = "random",
        over: Over = "sample",
        rank: int | None = None,
        warmup_steps: int = 0,
        norm: Norm = "l2",
        ascent: Ascent | None = None,
        bounds: tuple[Bound, Bound] | None = (0.0, 1.0),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        loss_cap: float | None = None,
        reduction: Reduction = "mean",
        prior: Prior | None = None,
        adversary: Adversary = "gradient",
        draws: int = 3,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            shape,
            epsilon=epsilon,
            step_size=step_size,
            num_domains=num_domains,
            warmup_steps=warmup_steps,
            norm=norm,
            ascent=ascent,
            bounds=bounds,
            mean=mean,
            std=std,
            loss_cap=loss_cap,
            reduction=reduction,
            prior=prior,
            adversary=adversary,
            draws=draws,
            generator=generator,
        )
        check_choice("start", start, SampleStart)
        check_choice("over", over, Over)
        self.start: SampleStart = start
        self.over: Over = over
        self.rank = None if rank is None else check_rank(rank, self.point_shape, self.prior)
        if self.rank is not None or not self.is_in_pixels:
            # Clipping an offset would change its rank, so the image is clipped instead.
            self.clips_in_attack = True
            self.space.passes_gradients = True
        if self.rank is not None:
            warn_of_full_rank(self.rank, self.point_shape)

    @property
    def is_kept(self) -> bool:
        return False

    @property
    def is_shared_over_ranks(self) -> bool:
        # The share of a sample in the mean of its domain does not change the direction of its gradient.
        return self.ascent == "gradient" and self.adversary == "gradient"

    def _start(self, x: Tensor, domain: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        shape = (len(x), *self.point_shape)
        like = x if self.is_in_pixels else _in_full_precision(x)
        if self.start == "zero":
            delta = torch.zeros_like(like) if self.is_in_pixels else like.new_zeros(shape)
        elif self.start == "cube":
            delta = (2 * draw_noise("uniform", shape, like=like, generator=self.generator) - 1) * self.radius
        elif self.rank is not None:
            delta = self._draw(len(x), like)
        else:
            delta = draw_in_ball(shape, self.radius, self.norm, like=like, generator=self.generator)
            delta = self._clip_offset(x, delta)
        return (), (delta.requires_grad_(),)

    def _draw(self, count: int, like: Tensor) -> Tensor:
        if self.rank is None:
            return super()._draw(count, like)
        left, right = draw_factors((count, *self.point_shape), self.rank, like=like, generator=self.generator)
        return scale_into_ball(left @ right, self.radius, self.norm)

    def _choose_worst(self, x: Tensor, domain: Tensor, losses_of: Callable[[Tensor], Tensor]) -> Tensor:
        return self._choose_by_group(torch.arange(len(x), device=x.device), len(x), _in_full_precision(x), losses_of)

    def _choose_random(self, x: Tensor, domain: Tensor) -> Tensor:
        return self._draw(len(x), _in_full_precision(x))

    def _offset(self, domain: Tensor, variables: tuple[Tensor, ...]) -> Tensor:
        return variables[0]

    def _ascend(
        self, variables: tuple[Tensor, ...], gradients: Sequence[Tensor], batch: tuple[Tensor, Tensor] | None
    ) -> None:
        assert batch is not None
        x, domain = batch
        (delta,), (gradient,) = variables, gradients
        if self.over == "sample":
            moved = self._step(delta, gradient, batch_dims=1)
        else:
            moved = delta.clone()
            for index in range(self.num_domains):
                if (rows := domain == index).any():
                    moved[rows] = self._step(delta[rows], gradient[rows], batch_dims=0)
        delta.copy_(self._clip_offset(x, moved) if self.rank is None else moved)

    def _step(self, delta: Tensor, gradient: Tensor, batch_dims: int) -> Tensor:
        step = self.step_size * compute_direction(gradient, self.ascent, self.norm, batch_dims)
        if self.rank is None:
            return project(delta + step, self.radius, self.norm, batch_dims)
        return self._limit_rank(delta + step, self.rank, batch_dims)

    def _limit_rank(self, delta: Tensor, rank: int, batch_dims: int = 1) -> Tensor:
        """Return the offset of low rank that is most aligned with `delta`, as long as that is inside the ball.

        The nearest one would be shorter, and a step of the radius would not reach the surface.
        """
        length = compute_norm(delta, self.norm, batch_dims).clamp(max=self.radius)
        return length * compute_direction(truncate_rank(delta, rank), "normalized", self.norm, batch_dims)

    def _clip_offset(self, x: Tensor, delta: Tensor) -> Tensor:
        """Return the part of the offset that survives clipping; its norm is never larger."""
        if not self.is_in_pixels:
            return delta
        image = self.space.to_image(x)
        return self.space.clip(image + delta) - image


def _in_full_precision(x: Tensor) -> Tensor:
    """Return an empty tensor for the coordinates of perturbations of these inputs, in at least single precision."""
    return x.new_empty(0, dtype=torch.promote_types(x.dtype, torch.float32))
