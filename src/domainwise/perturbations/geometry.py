"""Balls and directions, as pure functions.

Every function takes a tensor whose first `batch_dims` dimensions count points; a point is all that
lies in the remaining dimensions, and one norm is taken over the whole of it.
"""

import math
from typing import Literal

import torch
from torch import Tensor

Norm = Literal["l2", "linf"]
Ascent = Literal["normalized", "gradient", "sign"]


def size(points: Tensor, norm: Norm, batch_dims: int = 1) -> Tensor:
    """The norm of each point, shaped so that it broadcasts against `points`."""
    flat = points.flatten(batch_dims) if points.ndim > batch_dims else points.unsqueeze(-1)
    order = 2 if norm == "l2" else torch.inf
    sizes: Tensor = torch.linalg.vector_norm(flat, order, dim=-1)
    return sizes.reshape(*points.shape[:batch_dims], *[1] * (points.ndim - batch_dims))


def shrink(points: Tensor, epsilon: float, norm: Norm, batch_dims: int = 1) -> Tensor:
    """Points outside the ball scaled down onto its surface, which keeps their rank; differentiable."""
    # A floor under the divisor, not a branch: a point inside the ball (or at zero) gets factor 1 and a finite gradient.
    floor = max(epsilon, torch.finfo(points.dtype).tiny)
    return points * (epsilon / size(points, norm, batch_dims).clamp(min=floor))


def project(points: Tensor, epsilon: float, norm: Norm, batch_dims: int = 1) -> Tensor:
    """The nearest point of the ball of radius `epsilon` for each point."""
    return shrink(points, epsilon, norm, batch_dims) if norm == "l2" else points.clamp(-epsilon, epsilon)


def direction(gradient: Tensor, ascent: Ascent, norm: Norm, batch_dims: int = 1) -> Tensor:
    """Where a step of unit size goes: along the gradient, at length one, or at its signs.

    A gradient that is zero or not finite gives no direction: its point stays where it is.
    """
    largest = size(gradient, "linf", batch_dims)
    usable = torch.isfinite(largest) & (largest > 0)
    if ascent != "normalized":
        usable_gradient = torch.where(usable, gradient, 0.0)
        return usable_gradient if ascent == "gradient" else usable_gradient.sign()
    # Dividing by the largest entry first keeps tiny gradients from vanishing when they are squared.
    scaled = torch.where(usable, gradient / torch.where(usable, largest, 1.0), 0.0)
    return scaled / size(scaled, norm, batch_dims).clamp(min=1.0)


def random_point(
    shape: tuple[int, ...], epsilon: float, norm: Norm, *, like: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """Uniform draws from the ball, one for each entry of the first dimension of `shape`."""
    if norm == "linf":
        return (2 * draw("uniform", shape, like=like, generator=generator) - 1) * epsilon
    point = direction(draw("normal", shape, like=like, generator=generator), "normalized", "l2")
    volume = draw("uniform", (shape[0], *[1] * (len(shape) - 1)), like=like, generator=generator)
    radius = volume ** (1 / math.prod(shape[1:]))
    return point * radius * epsilon


def draw(
    kind: Literal["normal", "uniform"], shape: tuple[int, ...], *, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """N(0, 1) or U(0, 1) numbers of `like`'s type and device, drawn where the generator lives."""
    device = generator.device if generator is not None else like.device
    sample = torch.randn if kind == "normal" else torch.rand
    return sample(shape, generator=generator, dtype=like.dtype, device=device).to(like.device)
