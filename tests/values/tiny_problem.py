"""A network and two domains small enough to compute by hand."""

import torch
from torch import Tensor, nn


def linear_network() -> nn.Sequential:
    """Steep enough for losses on both sides of 2."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    network[1].weight.data *= 8
    return network


def two_domains(seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    """Batches of five and two images: a row of pixels at 0, one at 1, two well inside."""
    random = torch.Generator().manual_seed(seed)
    batches = []
    for count in (5, 2):
        x = 0.2 + 0.6 * torch.rand(count, 3, 4, 4, generator=random)
        x[:, :, 0], x[:, :, 1] = 0, 1
        batches.append((x, torch.randint(3, (count,), generator=random)))
    return batches


def domains(sizes: tuple[int, ...], seed: int) -> list[tuple[Tensor, Tensor]]:
    """Batches with the given numbers of images per domain, at most five."""
    full = [two_domains(seed + 100 * index)[0] for index in range(len(sizes))]
    return [(x[:size], y[:size]) for size, (x, y) in zip(sizes, full, strict=True)]
