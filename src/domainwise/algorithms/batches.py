"""What an update is given, one batch a domain, and ways to see it: as one batch, and domain by domain again."""

from collections.abc import Sequence

import torch
from torch import Tensor

# One (x, y) for every training domain, in order; a domain may have no samples.
Batches = Sequence[tuple[Tensor, Tensor]]


def present(batches: Batches, num_domains: int) -> list[tuple[Tensor, Tensor]]:
    """The batches that hold samples, once it is sure that there is one for every domain."""
    if len(batches) != num_domains:
        raise ValueError(f"update() needs one (x, y) a domain: {num_domains}, not {len(batches)}")
    there = [(x, y) for x, y in batches if len(y)]
    if not there:
        raise ValueError("update() needs at least one sample")
    return there


def joined(batches: Batches, num_domains: int) -> tuple[Tensor, Tensor, Tensor]:
    """All domains' images, labels and domain indices as one batch."""
    present(batches, num_domains)
    x = torch.cat([x for x, _ in batches])
    y = torch.cat([y for _, y in batches])
    sizes = torch.tensor([len(labels) for _, labels in batches])
    domain = torch.arange(num_domains).repeat_interleave(sizes)
    return x, y, domain.to(x.device)


def by_domain(values: Tensor, batches: Batches) -> list[Tensor]:
    """What was computed for the joined batch, (b, ...), as one tensor for each domain that has samples."""
    return [part for part in values.split([len(y) for _, y in batches]) if len(part)]


def mean_of_each(values: Tensor, batches: Batches) -> Tensor:
    """The mean over each domain's samples, (domains that have some, ...)."""
    return torch.stack([part.mean(0) for part in by_domain(values, batches)])


def domains_there(batches: Batches, device: torch.device) -> Tensor:
    """The indices of the domains that have samples, in the order of `by_domain`."""
    return torch.tensor([index for index, (_, y) in enumerate(batches) if len(y)], device=device)
