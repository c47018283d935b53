"""Images that a method adds to the training domains while it trains."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class Pool:
    """Added images, kept as bytes in main memory like the data they join.

    Args:
        domain_sizes: how many images each domain has without them.
    """

    def __init__(self, domain_sizes: Sequence[int]) -> None:
        self.domain_sizes = torch.tensor(domain_sizes, dtype=torch.float64)
        self.images: Tensor | None = None  # uint8, (n, C, H, W)
        self.labels = torch.zeros(0, dtype=torch.int64)
        self.domains = torch.zeros(0, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def add(self, x: Tensor, y: Tensor, domain: Tensor) -> None:
        images = (x.detach() * 255).round().to(torch.uint8).cpu()
        domains = torch.cat([self.domains, domain.cpu()])
        # Sorted by domain, so that one of a domain's images is found by its number there.
        order = domains.argsort(stable=True)
        self.images = (images if self.images is None else torch.cat([self.images, images]))[order]
        self.labels = torch.cat([self.labels, y.cpu()])[order]
        self.domains = domains[order]

    def mixed_into(
        self, x: Tensor, y: Tensor, domain: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """The batch as if drawn from domains enlarged by the pool: (x, y), some of them replaced."""
        if self.images is None:
            return x, y
        domain = domain.cpu()
        counts = self.domains.bincount(minlength=len(self.domain_sizes))
        share = counts / (counts + self.domain_sizes)
        coin, which = torch.rand(2, len(y), generator=generator, dtype=torch.float64)
        replaced = (coin < share[domain]).nonzero().squeeze(1)
        first = counts.cumsum(0) - counts
        of_each = domain[replaced]
        rows = first[of_each] + (which[replaced] * counts[of_each]).long()
        at = replaced.to(x.device)
        images = self.images[rows].to(x.device).to(x.dtype) / 255
        return x.index_copy(0, at, images), y.index_copy(0, at, self.labels[rows].to(y.device))

    def state(self) -> dict[str, Tensor | None]:
        return {"images": self.images, "labels": self.labels, "domains": self.domains}

    def load_state(self, state: Mapping[str, Tensor | None]) -> None:
        images, labels, domains = (state[name] for name in ("images", "labels", "domains"))
        assert labels is not None
        assert domains is not None
        self.images = None if images is None else images.cpu()
        self.labels, self.domains = labels.cpu(), domains.cpu()
