"""Singular values of perturbations, and the two ranks that they give."""

from collections.abc import Sequence

import torch
from torch import Tensor


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
