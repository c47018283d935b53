"""Fish: steps on one domain after another, then part of the way there (Shi et al. 2021, Algorithm 2)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm, Batches, Measurements, nonempty_batches, trainable_parameters
from domainwise.hparams import Choice, Hparams, hparam


@dataclass(frozen=True)
class FishHparams(Hparams):
    meta_step: float = hparam(
        0.5,
        help="Share of the way to the weights after the inner steps that an update takes (epsilon).",
        search=Choice((0.05, 0.1, 0.5)),
        key="meta_lr",
        above=0,
    )
    order: Literal["fixed", "random"] = hparam(
        "fixed", help="Order of the domains in the inner steps: fixed (as given) or random (the paper)."
    )


class Fish(Algorithm):
    """Gradient matching: moves towards the weights after one step per domain, where their gradients agree."""

    group = "meta-learning"
    source = "Shi et al. 2021"
    min_domains = 2
    Hparams = FishHparams
    hparams: FishHparams

    def update(self, batches: Batches) -> Measurements:
        nonempty = nonempty_batches(batches, self.num_domains)
        moving = [*trainable_parameters(self.network).values(), *self._averaged_buffers()]
        start = [tensor.detach().clone() for tensor in moving]
        losses: list[Tensor] = []
        # The inner steps use the network itself, and Adam's moments carry over to the next update.
        for index in self._order_domains(len(nonempty)):
            x, y = nonempty[index]
            loss = F.cross_entropy(self.network(x), y)
            self.descend_(loss)
            losses.append(loss.detach())
        with torch.no_grad():
            way = torch._foreach_sub(moving, start)
            torch._foreach_copy_(moving, torch._foreach_add(start, way, alpha=self.hparams.meta_step))
        return Measurements(loss=torch.stack(losses).mean())

    def _order_domains(self, count: int) -> list[int]:
        if self.hparams.order == "fixed":
            return list(range(count))
        return torch.randperm(count, generator=self.generator).tolist()

    def _averaged_buffers(self) -> list[Tensor]:
        """Return batch-norm statistics and the like, which follow the weights; counts do not."""
        return [buffer for buffer in self.network.buffers() if buffer.is_floating_point()]
