"""Batches of images as floats in [0, 1], channels-last: random ones for training, sequential ones for evaluation."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from domainwise.data.augmentation import augment_batch
from domainwise.data.dataset import Domain
from domainwise.data.strong_augmentation import augment_strongly
from domainwise.perturbations.device import send_to


def draw_batches(
    domains: Sequence[tuple[Domain, Tensor]],
    batch_size: int,
    generator: torch.Generator,
    device: torch.device,
    *,
    augmentation: torch.Generator | None = None,
    is_strong: bool = False,
) -> list[tuple[Tensor, Tensor]]:
    """Draw one batch per domain: `batch_size` images and labels, sampled with replacement from the given indices.

    Args:
        augmentation: where augmentations are drawn from; None leaves the images as they are.
        is_strong: augment with TrivialAugment instead of changes of colour.
    """
    augment = augment_strongly if is_strong else augment_batch
    batches = []
    for domain, indices in domains:
        chosen = indices[torch.randint(len(indices), (batch_size,), generator=generator)]
        images = _select_bytes(domain, chosen, device)
        images = _convert_to_floats(images) if augmentation is None else augment(images, augmentation)
        batches.append((images, send_to(device, domain.labels[chosen])))
    return batches


def iterate_batches(
    domain: Domain, indices: Tensor, device: torch.device, batch_size: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all of `indices` once, in order, in batches of a given size (default: one that suits the device)."""
    for chosen in indices.split(batch_size or _evaluation_batch_size(domain, device)):
        yield _convert_to_floats(_select_bytes(domain, chosen, device)), send_to(device, domain.labels[chosen])


def _select_bytes(domain: Domain, chosen: Tensor, device: torch.device) -> Tensor:
    """Return the chosen images, (b, C, H, W), channels-last; moved to the device as bytes, a quarter of the floats."""
    # As (n, H, W, C) the images are contiguous, so selecting them is a single copy.
    rows = domain.images.permute(0, 2, 3, 1).index_select(0, chosen)
    return send_to(device, rows).permute(0, 3, 1, 2)


def _convert_to_floats(images: Tensor) -> Tensor:
    return images.float().div_(255)


def _evaluation_batch_size(domain: Domain, device: torch.device) -> int:
    # On a CPU a network is up to three times faster while its activations fit into the cache.
    values = domain.images[0].numel()
    return min(256, max(16, 2**20 // values)) if device.type == "cpu" else 256
