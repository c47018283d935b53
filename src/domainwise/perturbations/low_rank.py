"""LDAT: a product of two thin factors per domain (the paper's Algorithm 2, in its appendix)."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from domainwise.perturbations.base import (
    Ascent,
    Bound,
    Norm,
    Perturbation,
    Reduction,
    compute_direction,
    draw_noise,
    gather_per_sample,
    scale_into_ball,
)


class LowRankPerturbation(Perturbation):
    """One perturbation per domain that is a product A B in each channel, so its rank is at most `rank`.

    The factors move freely and are never rescaled. Only their product is scaled into the ball, and the gradient reaches
    the factors through that scaling.

    Args:
        shape: Shape of one image, (channels, height, width).
        rank: Inner dimension of the product, the paper's l.

    All other arguments: see `Perturbation`.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        epsilon: float,
        step_size: float,
        num_domains: int = 1,
        rank: int = 10,
        norm: Norm = "l2",
        ascent: Ascent = "normalized",
        bounds: tuple[Bound, Bound] | None = (0.0, 1.0),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        loss_cap: float | None = None,
        reduction: Reduction = "mean",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            shape,
            epsilon=epsilon,
            step_size=step_size,
            num_domains=num_domains,
            norm=norm,
            ascent=ascent,
            bounds=bounds,
            mean=mean,
            std=std,
            loss_cap=loss_cap,
            reduction=reduction,
            generator=generator,
        )
        if len(self.shape) != 3:
            raise ValueError(f"a low-rank perturbation needs shape (channels, height, width), got {self.shape}")
        if rank < 1:
            raise ValueError(f"rank must be at least 1, got {rank}")
        channels, height, width = self.shape
        if rank > min(height, width):
            warnings.warn(f"rank {rank} exceeds the image size {height} x {width} and has no effect", stacklevel=2)
        self.rank = rank
        like = torch.empty(0)
        left = draw_noise("normal", (num_domains, channels, height, rank), like=like, generator=generator)
        right = draw_noise("normal", (num_domains, channels, rank, width), like=like, generator=generator)
        self.left = nn.Parameter(left)
        self.right = nn.Parameter(right)

    def _offset(self, domain: Tensor, variables: tuple[Tensor, ...]) -> Tensor:
        left, right = variables
        return gather_per_sample(scale_into_ball(left @ right, self.epsilon, self.norm), domain)

    def _ascend(
        self, variables: tuple[Tensor, ...], gradients: Sequence[Tensor], batch: tuple[Tensor, Tensor] | None
    ) -> None:
        for factor, gradient in zip(variables, gradients, strict=True):
            factor.add_(compute_direction(gradient, self.ascent, self.norm), alpha=self.step_size)
