"""Images that a method adds to the training domains while it trains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm, Batches, evaluating, joined
from domainwise.hparams import Hparams, bounded
from domainwise.networks import Network


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


@dataclass(frozen=True)
class GUTHparams(Hparams):
    """rounds (K) of new copies, one after every `round_every` updates (T_min).

    ascent_steps (T_max), ascent_step_size (eta): how a copy is made.
    distance_weight: of the distance in features that a copy pays for leaving its image (gamma).
    pool: the most copies of one round.
    """

    rounds: int = bounded(3, low=0)
    round_every: int = bounded(100, low=1)
    ascent_steps: int = bounded(5, low=1)
    ascent_step_size: float = bounded(1.0, low=0)
    distance_weight: float = bounded(1.0, low=0)
    pool: int = bounded(512, low=1)


class GUT(Algorithm):
    """Adversarial data augmentation: rounds of hard copies, near their images in features, join the training data."""

    source = "Volpi et al. 2018"
    Hparams = GUTHparams
    hparams: GUTHparams
    network: Network
    needs_features = True

    def __init__(self, network: nn.Module, *, num_domains: int, **settings: Any) -> None:
        super().__init__(network, num_domains=num_domains, **settings)
        if self.domain_sizes is None or len(self.domain_sizes) != num_domains:
            raise ValueError(
                f"GUT must know how many images each of the {num_domains} training domains has: give domain_sizes="
            )
        self.pool = Pool(self.domain_sizes)
        self.wanted = 0  # copies that the round under way still has to make

    def update(self, batches: Batches) -> dict[str, float]:
        x, y, domain = joined(batches, self.num_domains)
        x, y = self.pool.mixed_into(x, y, domain, self.generator)
        loss = F.cross_entropy(self.network(x), y)
        self.descend_(loss)
        self.updates += 1
        rounds, into_round = divmod(self.updates, self.hparams.round_every)
        if into_round == 0 and rounds <= self.hparams.rounds:
            self.wanted = self.hparams.pool
        if self.wanted:
            self._copy(x, y, domain)
        return {"loss": loss.item(), "pool": float(len(self.pool))}

    def _copy(self, x: Tensor, y: Tensor, domain: Tensor) -> None:
        """Copies of this batch; the next ones bring the rest that the round wants."""
        chosen = torch.randperm(len(y), generator=self.generator)[: self.wanted].to(x.device)
        copies = self._ascended(x[chosen], y[chosen])
        self.pool.add(copies, y[chosen], domain[chosen])
        self.wanted -= len(chosen)

    def _ascended(self, start: Tensor, y: Tensor) -> Tensor:
        """CE(f(x), y) - gamma / 2 |g(x) - g(start)|^2 climbed from `start`, g the featurizer."""
        network, hparams = self.network, self.hparams
        x = start
        # In eval mode, because dropout would put an image at a distance from itself.
        with evaluating(network):
            with torch.no_grad():
                anchor = network.featurizer(start)
            for _ in range(hparams.ascent_steps):
                x = x.detach().requires_grad_()
                features = network.featurizer(x)
                gain = F.cross_entropy(network.classifier(features), y, reduction="sum")
                cost = (features - anchor).square().sum() / 2
                (gradient,) = torch.autograd.grad(gain - hparams.distance_weight * cost, x)
                x = (x.detach() + hparams.ascent_step_size * gradient).clamp(0, 1)
        return x

    def get_extra_state(self) -> dict[str, Any]:
        return {**super().get_extra_state(), "pool": self.pool.state(), "wanted": self.wanted}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self.pool.load_state(state["pool"])
        self.wanted = state["wanted"]
