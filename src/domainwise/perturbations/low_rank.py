"""LDAT: one perturbation of low rank per domain (the paper's Algorithm 2, in its appendix)."""

import warnings
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from domainwise.perturbations.base import (
    Adversary,
    Ascent,
    Bound,
    Norm,
    Perturbation,
    Reduction,
    compute_direction,
    draw_noise,
    gather_per_sample,
    is_outside,
    scale_into_ball,
)
from domainwise.perturbations.checks import check_choice, check_integer, check_memory
from domainwise.perturbations.priors import PixelPrior, Prior

Solver = Literal["projected", "factors"]


class LowRankPerturbation(Perturbation):
    """One perturbation per domain, whose rank in each channel is at most `rank`.

    Args:
        shape: Shape of one image, (channels, height, width).
        rank: Largest rank of a channel, the paper's l.
        solver: `"projected"` takes an ascent step on the image itself and moves to the nearest image of low rank inside
            the ball. `"factors"` is the paper's product A B: its factors move freely and are never rescaled, the
            product is scaled into the ball, and the gradient reaches the factors through that scaling.

    All other arguments: see `Perturbation`.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        epsilon: float | str,
        step_size: float | None = None,
        num_domains: int = 1,
        rank: int = 10,
        solver: Solver = "projected",
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
        check_choice("solver", solver, Solver)
        if solver == "factors" and adversary != "gradient":
            raise ValueError(f"adversary={adversary!r} has no steps for factors to take; use solver='projected'")
        self.rank = check_rank(rank, self.point_shape, self.prior)
        self.solver: Solver = solver
        channels, height, width = self.point_shape
        check_memory("num_domains x shape", self.num_domains, *self.point_shape)
        check_memory("num_domains x rank x shape", self.num_domains, self.rank, channels, height + width)
        warn_of_full_rank(self.rank, self.point_shape)
        left, right = self._draw_factors(self.num_domains, torch.empty(0))
        if solver == "factors":
            self.left = nn.Parameter(left, requires_grad=False)
            self.right = nn.Parameter(right, requires_grad=False)
        else:
            self.deltas = nn.Parameter(scale_into_ball(left @ right, self.radius, norm), requires_grad=False)

    def _draw_factors(self, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
        return draw_factors((count, *self.point_shape), self.rank, like=like, generator=self.generator)

    def _draw(self, count: int, like: Tensor) -> Tensor:
        left, right = self._draw_factors(count, like)
        return scale_into_ball(left @ right, self.radius, self.norm)

    def _offset(self, domain: Tensor, variables: tuple[Tensor, ...]) -> Tensor:
        if self.solver == "projected":
            return gather_per_sample(variables[0], domain)
        left, right = variables
        return gather_per_sample(scale_into_ball(left @ right, self.radius, self.norm), domain)

    def _ascend(
        self, variables: tuple[Tensor, ...], gradients: Sequence[Tensor], batch: tuple[Tensor, Tensor] | None
    ) -> None:
        directions = [compute_direction(gradient, self.ascent, self.norm) for gradient in gradients]
        if self.solver == "factors":
            for factor, direction in zip(variables, directions, strict=True):
                factor.add_(direction, alpha=self.step_size)
            return
        step = self.step_size * directions[0]
        moved = scale_into_ball(truncate_rank(self.deltas + step, self.rank), self.radius, self.norm)
        has_step = step.flatten(1).any(1).reshape(-1, 1, 1, 1)
        self.deltas.copy_(torch.where(has_step, moved, self.deltas))

    def _project(self) -> None:
        if self.solver == "projected":
            scaled = scale_into_ball(self.deltas, self.radius, self.norm)
            self.deltas.copy_(torch.where(is_outside(self.deltas, self.radius, self.norm), scaled, self.deltas))


def draw_factors(
    shape: tuple[int, ...], rank: int, *, like: Tensor, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Draw Gaussian factors (..., height, rank) and (..., rank, width) of random images of this shape."""
    *batch, height, width = shape
    left = draw_noise("normal", (*batch, height, rank), like=like, generator=generator)
    right = draw_noise("normal", (*batch, rank, width), like=like, generator=generator)
    return left, right


def truncate_rank(images: Tensor, rank: int) -> Tensor:
    """Return the nearest image whose channels have rank at most `rank` (Eckart and Young 1936).

    Each channel is projected onto its leading singular vectors. They come from the Gram matrix of the shorter side in
    float64, which takes half the time of an SVD and is as exact as one in float32.

    Args:
        images: (..., height, width).
    """
    if rank >= min(images.shape[-2:]):
        return images
    if images.shape[-2] > images.shape[-1]:
        return truncate_rank(images.mT, rank).mT
    leading = leading_singular_vectors(images, rank)
    return leading @ (leading.mT @ images)


def leading_singular_vectors(rows: Tensor, count: int) -> Tensor:
    """Return the leading left singular vectors of the rows (..., n, values) as (..., n, count), largest first."""
    # Apple GPUs have neither float64 nor eigenvectors.
    exact = (rows.cpu() if rows.device.type == "mps" else rows).double()
    vectors: Tensor = torch.linalg.eigh(exact @ exact.mT).eigenvectors[..., -count:]
    return vectors.flip(-1).to(rows)


def check_rank(rank: int, shape: Sequence[int], prior: Prior) -> int:
    """Check the rank of points of this shape."""
    if len(shape) != 3 and not isinstance(prior, PixelPrior):
        raise ValueError(f"a rank needs a prior that changes an image, pixels or spectrum, got prior {prior.name!r}")
    if len(shape) != 3:
        raise ValueError(f"shape must be (channels, height, width) for a low-rank perturbation, got {tuple(shape)}")
    return check_integer("rank", rank, minimum=1)


def warn_of_full_rank(rank: int, shape: Sequence[int]) -> None:
    _, height, width = shape
    if rank > min(height, width):
        warnings.warn(f"rank {rank} exceeds the image size {height} x {width} and has no effect", stacklevel=3)
