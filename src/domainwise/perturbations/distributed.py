"""Means over all processes, where torch.distributed runs: ranks that share a batch then move alike."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def has_other_ranks() -> bool:
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def mean_over_ranks(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Each tensor's mean over all ranks, in one message for all of them; without other ranks the tensors themselves."""
    if not tensors or not has_other_ranks():
        return list(tensors)
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    torch.distributed.all_reduce(flat)
    flat /= torch.distributed.get_world_size()
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True)]


def average_gradients_(parameters: Iterable[Tensor]) -> None:
    """Give every parameter its mean gradient over all ranks; one that has none on any rank stays without."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained or not has_other_ranks():
        return
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in trained]
    is_there = torch.tensor([float(each.grad is not None) for each in trained]).to(trained[0].device)
    *means, is_anywhere = mean_over_ranks([*gradients, is_there])
    for index, (parameter, mean) in enumerate(zip(trained, means, strict=True)):
        # Only for a missing gradient is the device asked, and waited for.
        if parameter.grad is not None or is_anywhere[index] > 0:
            # Laid out in memory as its parameter is.
            parameter.grad = torch.empty_like(parameter).copy_(mean)
