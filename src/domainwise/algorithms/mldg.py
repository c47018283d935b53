"""MLDG: a step on some domains should also help on the others (Li et al. 2018, Algorithm 1, first order)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from domainwise.algorithms.base import (
    Algorithm,
    Batches,
    Measurements,
    compute_gradients,
    measure,
    nonempty_batches,
    trainable_parameters,
)
from domainwise.hparams import Choice, Hparams, Power, hparam

_ADAM_EPS = 1e-8


@dataclass(frozen=True)
class MLDGHparams(Hparams):
    meta_test_weight: float = hparam(
        1.0, help="Weight of the loss after the virtual step (beta).", search=Power(10, -1, 1), key="mldg_beta", low=0
    )
    meta_test_domains: int = hparam(
        2,
        help="Domains held back as meta-test domains, at most all but one.",
        search=Choice((1, 2)),
        key="n_meta_test",
        low=1,
    )


class MLDG(Algorithm):
    """Meta-learning domain generalization: adds the loss on held-back domains after a virtual step on another."""

    group = "meta-learning"
    source = "Li et al. 2018 (AAAI)"
    supports_scaling = False
    min_domains = 2
    Hparams = MLDGHparams
    hparams: MLDGHparams

    def update(self, batches: Batches) -> Measurements:
        nonempty = nonempty_batches(batches, self.num_domains)
        weights = trainable_parameters(self.network)
        total = [torch.zeros_like(weight) for weight in weights.values()]
        losses: list[Tensor] = []
        for (x, y), meta_test in self._draw_pairs(nonempty):
            loss = F.cross_entropy(self.network(x), y)
            gradient = compute_gradients(loss, weights.values())
            torch._foreach_add_(total, gradient, alpha=1 / len(nonempty))
            losses.append(loss.detach())
            if meta_test is not None:
                virtual = self._step_virtually(weights, gradient)
                meta_loss = F.cross_entropy(self._forward_with(virtual, meta_test[0]), meta_test[1])
                meta_weight = self.hparams.meta_test_weight
                meta_gradient = compute_gradients(meta_loss, virtual.values())
                torch._foreach_add_(total, meta_gradient, alpha=meta_weight / len(nonempty))
                losses[-1] += meta_weight * meta_loss.detach()
        self.apply_gradients_(total)
        return Measurements(loss=measure(torch.stack(losses).sum()) / len(nonempty))

    def _draw_pairs(self, batches: Batches) -> Iterator[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None]]:
        """Yield each meta-train batch with a meta-test batch, or with None if there is only one domain."""
        order = [batches[index] for index in torch.randperm(len(batches), generator=self.generator).tolist()]
        num_meta_test = min(self.hparams.meta_test_domains, len(batches) - 1)
        meta_train = order[: len(order) - num_meta_test]
        for index, batch in enumerate(meta_train):
            yield batch, order[len(meta_train) + index % num_meta_test] if num_meta_test else None

    def _step_virtually(self, weights: dict[str, Tensor], gradient: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return the weights after the first step of a new Adam, whose moments are the gradient and its square."""
        start = [weight.detach() for weight in weights.values()]
        direction = torch._foreach_add(list(gradient), start, alpha=self.hparams.weight_decay)
        scale = torch._foreach_abs(direction)
        torch._foreach_add_(scale, _ADAM_EPS)
        end = torch._foreach_sub(start, torch._foreach_div(direction, scale), alpha=self.hparams.lr)
        return {name: weight.requires_grad_() for name, weight in zip(weights, end, strict=True)}

    def _forward_with(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        """Return the network's logits with other weights; writes to buffers go to copies."""
        buffers = {name: buffer.clone() for name, buffer in self.network.named_buffers()}
        logits: Tensor = functional_call(self.network, {**weights, **buffers}, (x,))
        return logits
