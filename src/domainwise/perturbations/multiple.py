"""MAT: a convex mix of k perturbations a domain (the paper's Algorithm 1)."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.perturbations.base import Perturbation, check_choice, direction, draw, of_each, project
from domainwise.perturbations.universal import KeptStart, kept_start, stepped

Weights = Literal["domain", "sample"]
NormalizedOver = Literal["perturbation", "stack"]


class MultiplePerturbation(Perturbation):
    """Each domain has `count` perturbations in its ball, and adds a convex mix of them to its samples.

    The mixing weights are a softmax of logits, so a raw gradient step on the logits keeps them on the simplex.

    Args:
        count: how many perturbations are mixed, the paper's k.
        weight_step_size: of the raw gradient step on the logits, the paper's eta.
        weights: `"domain"`, one learned mix a domain, kept over updates; `"sample"`, logits drawn from N(0, 1) for
            every sample at every attack and then moved one step, as in the released code.
        normalized_over: with `ascent="normalized"`, each `"perturbation"`'s gradient is scaled to length one, or a
            domain's whole `"stack"` of them together, as in the released code.
        start: as for `UniversalPerturbation`.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        count: int = 10,
        weight_step_size: float = 0.001,
        weights: Weights = "domain",
        normalized_over: NormalizedOver = "perturbation",
        start: KeptStart = "projected",
        **settings: Any,
    ) -> None:
        super().__init__(shape, **settings)
        check_choice("weights", weights, Weights)
        check_choice("normalized_over", normalized_over, NormalizedOver)
        if count < 1:
            raise ValueError(f"count must be at least 1, not {count}")
        if not 0 <= weight_step_size < float("inf"):
            raise ValueError(f"weight_step_size must be a number of at least 0, not {weight_step_size}")
        self.count = count
        self.weight_step_size = weight_step_size
        self.weights: Weights = weights
        self.normalized_over: NormalizedOver = normalized_over
        self.deltas = nn.Parameter(kept_start((self.num_domains, count, *self.shape), start, self, batch_dims=2))
        if weights == "domain":
            noise = draw("normal", (self.num_domains, count), like=self.deltas, generator=self.generator)
            self.logits = nn.Parameter(noise)

    @property
    def is_kept(self) -> bool:
        return self.weights == "domain"

    def mixing_weights(self) -> Tensor:
        """The weights of each domain's mix, (num_domains, count)."""
        self._require_kept("mixing_weights()")
        return self.logits.softmax(-1)

    def _start(self, x: Tensor) -> tuple[Tensor, ...]:
        if self.is_kept:
            return (self.deltas, self.logits)
        logits = draw("normal", (len(x), self.count), like=self.deltas, generator=self.generator)
        return (self.deltas, logits.requires_grad_())

    def _offset(self, domain: Tensor, point: tuple[Tensor, ...]) -> Tensor:
        deltas, logits = point
        alpha = logits.softmax(-1)
        if self.is_kept:
            mixed = torch.bmm(alpha.unsqueeze(1), deltas.flatten(2)).reshape(-1, *self.shape)
            return of_each(mixed, domain)
        # One product (b, domains * k) x (domains * k, CHW), a sample's weights standing in its own domain's block:
        # domains mix freely in a batch, and nothing of size (b, k, CHW) is ever made.
        blocks = F.one_hot(domain, self.num_domains).to(alpha.dtype).unsqueeze(-1) * alpha.unsqueeze(1)
        return (blocks.flatten(1) @ deltas.flatten(2).flatten(0, 1)).reshape(-1, *self.shape)

    def _ascend(
        self, point: tuple[Tensor, ...], gradients: Sequence[Tensor], batch: tuple[Tensor, Tensor] | None
    ) -> None:
        point[1].add_(direction(gradients[1], "gradient", "l2"), alpha=self.weight_step_size)
        stack_dims = 2 if self.normalized_over == "perturbation" else 1
        step = self.step_size * direction(gradients[0], self.ascent, self.norm, stack_dims)
        self.deltas.copy_(stepped(self.deltas, step, self.epsilon, self.norm, batch_dims=2))

    def _confine(self) -> None:
        self.deltas.copy_(project(self.deltas, self.epsilon, self.norm, batch_dims=2))
