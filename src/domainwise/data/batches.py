"""Images to batches: drawn for training, in order for evaluation; float in [0, 1] and channels-last either way."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from domainwise.data.augmentation import augment_batch
from domainwise.data.dataset import Domain


def draw_batches(
    domains: Sequence[tuple[Domain, Tensor]],
    batch_size: int,
    generator: torch.Generator,
    device: torch.device,
    *,
    is_augmented: bool = False,
) -> list[tuple[Tensor, Tensor]]:
    """A batch a domain: `batch_size` images and labels, drawn independently and with replacement from its indices."""
    batches = []
    for domain, indices in domains:
        chosen = indices[torch.randint(len(indices), (batch_size,), generator=generator)]
        images = _bytes(domain, chosen, device)
        images = augment_batch(images, generator) if is_augmented else _floats(images)
        batches.append((images, domain.labels[chosen].to(device)))
    return batches


def iterate_batches(domain: Domain, indices: Tensor, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """All of `indices`, once, in batches that suit the device."""
    for chosen in indices.split(_evaluation_batch(domain, device)):
        yield _floats(_bytes(domain, chosen, device)), domain.labels[chosen].to(device)


def _bytes(domain: Domain, chosen: Tensor, device: torch.device) -> Tensor:
    """The chosen images, (b, C, H, W), channels-last; moved to the device as bytes, a quarter of the size of floats."""
    # Seen as (n, H, W, C) the rows lie in memory as channels-last batches need them: choosing them is one copy.
    rows = domain.images.permute(0, 2, 3, 1).index_select(0, chosen)
    return rows.to(device).permute(0, 3, 1, 2)


def _floats(images: Tensor) -> Tensor:
    return images.float().div_(255)


def _evaluation_batch(domain: Domain, device: torch.device) -> int:
    # On a processor a network is up to three times faster while its activations fit into the cache.
    values = domain.images[0].numel()
    return min(256, max(16, 2**20 // values)) if device.type == "cpu" else 256
