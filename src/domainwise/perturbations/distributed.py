"""Sums, averages and rows of all ranks of torch.distributed, so that ranks that share a batch move in the same way."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from domainwise.perturbations.device import send_to


def has_other_ranks() -> bool:
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def sum_over_ranks(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return each tensor's sum over all ranks, sent as one message; without other ranks, the tensors themselves."""
    if not tensors or not has_other_ranks():
        return list(tensors)
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    torch.distributed.all_reduce(flat)
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True)]


def mean_over_ranks(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return each tensor's mean over all ranks, sent as one message; without other ranks, the tensors themselves."""
    sums = sum_over_ranks(tensors)
    return [each / torch.distributed.get_world_size() for each in sums] if has_other_ranks() else sums


def harmonic_mean_over_ranks(tensor: Tensor) -> Tensor:
    """Return the tensor's harmonic mean over all ranks, to which an infinite value adds nothing."""
    if not has_other_ranks():
        return tensor
    (mean,) = mean_over_ranks([tensor.reciprocal()])
    return mean.reciprocal()


def broadcast_from_first_rank_(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor with that of the first rank."""
    if has_other_ranks():
        for tensor in tensors:
            torch.distributed.broadcast(tensor, src=0)


def gather_over_ranks(rows: Tensor) -> Tensor:
    """Return the rows (n, ...) of all ranks, of which each may have another number, in the order of the ranks."""
    if not has_other_ranks():
        return rows
    world_size = torch.distributed.get_world_size()
    count = send_to(rows.device, torch.tensor([len(rows)]))
    counts = [torch.empty_like(count) for _ in range(world_size)]
    torch.distributed.all_gather(counts, count)
    sizes = [int(each) for each in counts]
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in range(world_size)]
    torch.distributed.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def average_gradients_(parameters: Iterable[Tensor]) -> None:
    """Replace each gradient with its mean over all ranks. Parameters without a gradient on any rank keep none."""
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    if not trainable or not has_other_ranks():
        return
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in trainable]
    has_gradient = torch.tensor([float(each.grad is not None) for each in trainable])
    *means, share_with_gradient = mean_over_ranks([*gradients, send_to(trainable[0].device, has_gradient)])
    for index, (parameter, mean) in enumerate(zip(trainable, means, strict=True)):
        # The device is only queried, and waited for, if this rank has no gradient.
        if parameter.grad is not None or share_with_gradient[index] > 0:
            # With the memory layout of the parameter.
            parameter.grad = torch.empty_like(parameter).copy_(mean)
