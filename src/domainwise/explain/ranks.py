"""Singular values of perturbations, and the two ranks that they give."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from domainwise.errors import DomainwiseError
from domainwise.explain.offsets import offsets_of_domain, perturbed_algorithm
from domainwise.training.loading import OpenRun


def singular_values(matrices: Tensor) -> Tensor:
    """Of each matrix (..., rows, columns), largest first; computed in float64, whatever the entries are."""
    values: Tensor = torch.linalg.svdvals(matrices.double())
    return values


def numerical_rank(values: Tensor, shape: Sequence[int]) -> Tensor:
    """How many singular values (..., k) of float32 matrices (rows, columns) are above what rounding leaves of zero."""
    floor = max(shape) * torch.finfo(torch.float32).eps * values[..., :1]
    return (values > floor).sum(-1)


def effective_rank(values: Tensor) -> Tensor:
    """How many directions carry a matrix: exp of the entropy of its normalized squared singular values (..., k)."""
    energy = values.square()
    total = energy.sum(-1, keepdim=True)
    share = torch.where(total > 0, energy / total, 0.0)
    return torch.where(total.squeeze(-1) > 0, torch.special.entr(share).sum(-1).exp(), 0.0)


@dataclass(frozen=True)
class Ranks:
    """Of one run and training domain; a number a channel.

    Args:
        images: how many perturbations are stacked, the paper's n.
        shape: (H, W).
        stacked, stacked_effective: rank of the matrix (n, H W) of each channel, by count and by entropy.
        single, single_effective: of a channel (H, W) of one perturbation, the mean over all.
        single_most: the highest rank among them.
        stacked_spectrum, single_spectrum: singular values over the largest, (C, k); of single ones the mean.
    """

    run: str
    method: str
    domain: str
    images: int
    shape: tuple[int, int]
    stacked: list[int]
    stacked_effective: list[float]
    single: list[float]
    single_effective: list[float]
    single_most: int
    stacked_spectrum: Tensor
    single_spectrum: Tensor


def ranks(run: OpenRun, images: int = 256, device: torch.device | None = None) -> list[Ranks]:
    """Of each training domain, over its first `images` training images."""
    if images < 1:
        raise DomainwiseError(f"give at least 1 image to look at, not {images}")
    algorithm, perturbation = perturbed_algorithm(run)
    algorithm.to(device)
    found = []
    for name in run.roles.train:
        offsets = offsets_of_domain(run, algorithm, name, images)
        found.append(ranks_of(offsets, run.name, run.settings["algorithm"], name, perturbation.is_kept))
    return found


def ranks_of(offsets: Tensor, run: str, method: str, domain: str, is_shared: bool = False) -> Ranks:
    """The ranks of perturbations (n, C, H, W); of shared ones each is the first, and is looked at once."""
    count, _, height, width = offsets.shape
    rows = offsets.transpose(0, 1).flatten(2)
    stacked = singular_values(rows)
    single = singular_values(offsets[:1] if is_shared else offsets)
    single_ranks = numerical_rank(single, (height, width))
    return Ranks(
        run=run,
        method=method,
        domain=domain,
        images=count,
        shape=(height, width),
        stacked=numerical_rank(stacked, rows.shape[1:]).tolist(),
        stacked_effective=effective_rank(stacked).tolist(),
        single=single_ranks.double().mean(0).tolist(),
        single_effective=effective_rank(single).mean(0).tolist(),
        single_most=int(single_ranks.max()),
        stacked_spectrum=_over_largest(stacked),
        single_spectrum=_over_largest(single).mean(0),
    )


def _over_largest(values: Tensor) -> Tensor:
    return values / values[..., :1].clamp(min=torch.finfo(values.dtype).tiny)
