"""LDAT: a product of two thin factors a domain (the paper's Algorithm 2, in its appendix)."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from domainwise.perturbations.base import Perturbation, direction, draw, of_each, shrink


class LowRankPerturbation(Perturbation):
    """Each domain's perturbation is A B in every channel, so its rank is at most `rank`.

    The factors move freely and are never rescaled; only their product is scaled into the ball, and the gradient
    reaches the factors through that scaling.

    Args:
        shape: (C, H, W).
        rank: the inner dimension of the product, the paper's l.
    """

    def __init__(self, shape: Sequence[int], *, rank: int = 10, **settings: Any) -> None:
        super().__init__(shape, **settings)
        if len(self.shape) != 3:
            raise ValueError(f"a low-rank perturbation needs a shape (channels, height, width), not {self.shape}")
        if rank < 1:
            raise ValueError(f"rank must be at least 1, not {rank}")
        channels, height, width = self.shape
        if rank > min(height, width):
            warnings.warn(
                f"rank {rank} is above the image size {height} x {width}, so it constrains nothing", stacklevel=2
            )
        self.rank = rank
        like = torch.empty(0)
        left = draw("normal", (self.num_domains, channels, height, rank), like=like, generator=self.generator)
        right = draw("normal", (self.num_domains, channels, rank, width), like=like, generator=self.generator)
        self.left = nn.Parameter(left)
        self.right = nn.Parameter(right)

    def _offset(self, domain: Tensor, point: tuple[Tensor, ...]) -> Tensor:
        left, right = point
        return of_each(shrink(left @ right, self.epsilon, self.norm), domain)

    def _ascend(
        self, point: tuple[Tensor, ...], gradients: Sequence[Tensor], batch: tuple[Tensor, Tensor] | None
    ) -> None:
        for factor, gradient in zip(point, gradients, strict=True):
            factor.add_(direction(gradient, self.ascent, self.norm), alpha=self.step_size)
