"""MLDG: a step on some domains should help on the others (Li et al. 2018, Algorithm 1, first order)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm, Batches, gradients_of, present, step_along_, trained
from domainwise.hparams import Choice, Hparams, Power, searched

_ADAM_EPS = 1e-8


@dataclass(frozen=True)
class MLDGHparams(Hparams):
    """meta_test_weight: of the loss after the virtual step (beta); meta_test_domains: how many play unseen, at most
    all but one."""

    meta_test_weight: float = searched(1.0, Power(10, -1, 1), key="mldg_beta", low=0)
    meta_test_domains: int = searched(2, Choice((1, 2)), key="n_meta_test", low=1)


class MLDG(Algorithm):
    """Meta-learning domain generalization: the loss on domains held back counts after a virtual step on another."""

    source = "Li et al. 2018 (AAAI)"
    min_domains = 2
    Hparams = MLDGHparams
    hparams: MLDGHparams

    def update(self, batches: Batches) -> dict[str, float]:
        there = present(batches, self.num_domains)
        weights = trained(self.network)
        total = [torch.zeros_like(weight) for weight in weights.values()]
        losses: list[Tensor] = []
        for (x, y), unseen in self._pairs(there):
            loss = F.cross_entropy(self.network(x), y)
            gradient = gradients_of(loss, weights.values())
            torch._foreach_add_(total, gradient, alpha=1 / len(there))
            losses.append(loss.detach())
            if unseen is not None:
                after = self._stepped(weights, gradient)
                meta_loss = F.cross_entropy(self._at(after, unseen[0]), unseen[1])
                meta_weight = self.hparams.meta_test_weight
                torch._foreach_add_(total, gradients_of(meta_loss, after.values()), alpha=meta_weight / len(there))
                losses[-1] += meta_weight * meta_loss.detach()
        step_along_(self, total)
        return {"loss": torch.stack(losses).sum().item() / len(there)}

    def _pairs(self, batches: Batches) -> Iterator[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None]]:
        """Each domain to train on, with one that plays unseen; with None if the batch holds a single domain."""
        order = [batches[index] for index in torch.randperm(len(batches), generator=self.generator).tolist()]
        held_back = min(self.hparams.meta_test_domains, len(batches) - 1)
        seen = order[: len(order) - held_back]
        for index, batch in enumerate(seen):
            yield batch, order[len(seen) + index % held_back] if held_back else None

    def _stepped(self, weights: dict[str, Tensor], gradient: Iterable[Tensor]) -> dict[str, Tensor]:
        """The weights after the first step of a fresh Adam, whose running means are the gradient and its square."""
        here = [weight.detach() for weight in weights.values()]
        direction = torch._foreach_add(list(gradient), here, alpha=self.hparams.weight_decay)
        size = torch._foreach_abs(direction)
        torch._foreach_add_(size, _ADAM_EPS)
        after = torch._foreach_sub(here, torch._foreach_div(direction, size), alpha=self.hparams.lr)
        return {name: weight.requires_grad_() for name, weight in zip(weights, after, strict=True)}

    def _at(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        """The network's logits with other weights; what it writes into buffers goes to copies."""
        buffers = {name: buffer.clone() for name, buffer in self.network.named_buffers()}
        logits: Tensor = functional_call(self.network, {**weights, **buffers}, (x,))
        return logits
