"""Images to batches: drawn for training, in order for evaluation; float in [0, 1] and channels-last either way."""

from collections.abc import Iterator

import torch
from torch import Tensor

from domainwise.data.dataset import Domain


def draw_batch(
    domain: Domain, indices: Tensor, batch_size: int, generator: torch.Generator, device: torch.device
) -> tuple[Tensor, Tensor]:
    """`batch_size` images and labels, drawn independently and with replacement from `indices`."""
    chosen = indices[torch.randint(len(indices), (batch_size,), generator=generator)]
    return as_images(domain, chosen, device), domain.labels[chosen].to(device)


def in_order(
    domain: Domain, indices: Tensor, device: torch.device, batch_size: int = 256
) -> Iterator[tuple[Tensor, Tensor]]:
    """All of `indices`, once."""
    for chosen in indices.split(batch_size):
        yield as_images(domain, chosen, device), domain.labels[chosen].to(device)


def as_images(domain: Domain, chosen: Tensor, device: torch.device) -> Tensor:
    """The chosen images as floats in [0, 1], (b, C, H, W); moved to the device as bytes, a quarter of the size."""
    # Seen as (n, H, W, C) the rows lie in memory as channels-last batches need them: choosing them is one copy.
    rows = domain.images.permute(0, 2, 3, 1).index_select(0, chosen)
    return rows.to(device).permute(0, 3, 1, 2).float().div_(255)
