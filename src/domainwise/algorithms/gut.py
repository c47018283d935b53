"""GUT: adversarial copies of images join the training data (Volpi et al. 2018)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import (
    Algorithm,
    Batches,
    Measurements,
    Objective,
    concatenate_batches,
    eval_mode,
    repeat_indices,
)
from domainwise.hparams import Hparams, hparam
from domainwise.networks import Network
from domainwise.perturbations.device import send_to


class Pool:
    """Images added to the training domains, kept as bytes in main memory like the data itself.

    Args:
        domain_sizes: Number of images per domain without the pool.
    """

    def __init__(self, domain_sizes: Sequence[int]) -> None:
        self.domain_sizes = torch.tensor(domain_sizes, dtype=torch.float64)
        self.images: Tensor | None = None  # uint8, (n, C, H, W)
        self.labels = torch.zeros(0, dtype=torch.int64)
        self.domains = torch.zeros(0, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def add(self, x: Tensor, y: Tensor, domain: Tensor) -> None:
        """Add images (n, C, H, W) with their labels (n,); their domains (n,) are on the CPU."""
        images = (x.detach() * 255).round().to(torch.uint8).cpu()
        domains = torch.cat([self.domains, domain])
        # Sorted by domain, so that an image is found by its index within its domain.
        order = domains.argsort(stable=True)
        self.images = (images if self.images is None else torch.cat([self.images, images]))[order]
        self.labels = torch.cat([self.labels, y.cpu()])[order]
        self.domains = domains[order]

    def replace_images(
        self, x: Tensor, y: Tensor, domain: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Return (x, y) as if drawn from the domains plus the pool: some images are replaced by pool images.

        Args:
            domain: Domain indices, (b,), on the CPU.
        """
        if self.images is None:
            return x, y
        counts = self.domains.bincount(minlength=len(self.domain_sizes))
        share = counts / (counts + self.domain_sizes)
        coin, which = torch.rand(2, len(y), generator=generator, dtype=torch.float64)
        replaced = (coin < share[domain]).nonzero().squeeze(1)
        first = counts.cumsum(0) - counts
        domains = domain[replaced]
        rows = first[domains] + (which[replaced] * counts[domains]).long()
        positions = send_to(x.device, replaced)
        images = send_to(x.device, self.images[rows]).to(x.dtype) / 255
        return x.index_copy(0, positions, images), y.index_copy(0, positions, send_to(y.device, self.labels[rows]))

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
    rounds: int = hparam(3, help="Rounds of new copies (K).", low=0)
    round_every: int = hparam(100, help="Updates between rounds (T_min).", low=1)
    ascent_steps: int = hparam(5, help="Ascent steps per copy (T_max).", low=1)
    ascent_step_size: float = hparam(1.0, help="Size of one ascent step (eta).", low=0)
    distance_weight: float = hparam(
        1.0, help="Weight of the feature distance between a copy and its image (gamma).", low=0
    )
    pool: int = hparam(512, help="Maximum number of copies per round.", low=1)


class GUT(Algorithm):
    """Adversarial data augmentation: hard copies, close to their images in feature space, join the training data."""

    supports_sharpness = True
    group = "adversarial"
    source = "Volpi et al. 2018"
    Hparams = GUTHparams
    hparams: GUTHparams
    network: Network
    needs_features = True

    def setup(self) -> None:
        if self.domain_sizes is None or len(self.domain_sizes) != self.num_domains:
            raise ValueError(
                f"GUT needs the number of images in each of the {self.num_domains} training domains; pass domain_sizes"
            )
        self.pool = Pool(self.domain_sizes)
        self.wanted = 0  # copies still to be made in the current round

    def update(self, batches: Batches) -> Measurements:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        domain = repeat_indices([len(labels) for _, labels in batches])
        x, y = self.pool.replace_images(x, y, domain, self.generator)
        measurements = self.minimize_(lambda: self._compute_loss(x, y))
        self.updates += 1
        rounds, into_round = divmod(self.updates, self.hparams.round_every)
        if into_round == 0 and rounds <= self.hparams.rounds:
            self.wanted = self.hparams.pool
        if self.wanted:
            self._add_copies(x, y, domain)
        return Measurements(**measurements.numbers, pool=float(len(self.pool)))

    def _compute_loss(self, x: Tensor, y: Tensor) -> Objective:
        loss = F.cross_entropy(self.network(x), y)
        return loss, {"loss": loss}

    def _add_copies(self, x: Tensor, y: Tensor, domain: Tensor) -> None:
        """Add copies of this batch to the pool; later batches supply the rest of the round."""
        chosen = torch.randperm(len(y), generator=self.generator)[: self.wanted]
        rows = send_to(x.device, chosen)
        self.pool.add(self._ascend(x[rows], y[rows]), y[rows], domain[chosen])
        self.wanted -= len(chosen)

    def _ascend(self, start: Tensor, y: Tensor) -> Tensor:
        """Maximize CE(f(x), y) - gamma / 2 |g(x) - g(start)|^2 from `start`, where g is the featurizer."""
        network, hparams = self.network, self.hparams
        x = start
        # In eval mode, because with dropout an image would have a distance to itself.
        with eval_mode(network):
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
