"""MAT: a convex combination of k perturbations per domain (the paper's Algorithm 1)."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.perturbations.base import (
    Ascent,
    Bound,
    GaussianStart,
    Norm,
    Perturbation,
    Reduction,
    check_choice,
    check_nonnegative,
    compute_direction,
    draw_gaussian_start,
    draw_noise,
    gather_per_sample,
    project,
    step_and_project,
)

Weights = Literal["domain", "sample"]
NormalizedOver = Literal["perturbation", "stack"]


class MultiplePerturbation(Perturbation):
    """`count` perturbations per domain, each in the ball; a convex combination of them is added to the samples.

    The mixing weights are a softmax of logits, so a raw gradient step on the logits keeps them on the simplex.

    Args:
        count: Number of perturbations per domain, the paper's k.
        weight_step_size: Size of the raw gradient step on the logits, the paper's eta.
        weights: `"domain"` learns one set of mixing weights per domain and keeps it across updates. `"sample"` draws
            logits from N(0, 1) for every sample in every attack and moves them by one step, as in the released code.
        normalized_over: With `ascent="normalized"`, scale the gradient of each `"perturbation"` to norm 1, or that of
            all perturbations of a domain together (`"stack"`), as in the released code.
        start: As for `UniversalPerturbation`.

    All other arguments: see `Perturbation`.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        epsilon: float,
        step_size: float,
        num_domains: int = 1,
        count: int = 10,
        weight_step_size: float = 0.001,
        weights: Weights = "domain",
        normalized_over: NormalizedOver = "perturbation",
        start: GaussianStart = "projected",
        norm: Norm = "l2",
        ascent: Ascent = "normalized",
        bounds: tuple[Bound, Bound] | None = (0.0, 1.0),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        loss_cap: float | None = None,
        reduction: Reduction = "mean",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            shape,
            epsilon=epsilon,
            step_size=step_size,
            num_domains=num_domains,
            norm=norm,
            ascent=ascent,
            bounds=bounds,
            mean=mean,
            std=std,
            loss_cap=loss_cap,
            reduction=reduction,
            generator=generator,
        )
        check_choice("weights", weights, Weights)
        check_choice("normalized_over", normalized_over, NormalizedOver)
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        self.count = count
        self.weight_step_size = check_nonnegative("weight_step_size", weight_step_size)
        self.weights: Weights = weights
        self.normalized_over: NormalizedOver = normalized_over
        deltas = draw_gaussian_start(
            (num_domains, count, *self.shape), start, self.epsilon, norm, batch_dims=2, generator=generator
        )
        self.deltas = nn.Parameter(deltas)
        if weights == "domain":
            logits = draw_noise("normal", (num_domains, count), like=self.deltas, generator=generator)
            self.logits = nn.Parameter(logits)

    @property
    def is_kept(self) -> bool:
        return self.weights == "domain"

    def mixing_weights(self) -> Tensor:
        """Return the mixing weights of each domain, (num_domains, count)."""
        self._require_kept("mixing_weights()")
        return self.logits.softmax(-1)

    def _start(self, x: Tensor) -> tuple[Tensor, ...]:
        if self.is_kept:
            return (self.deltas, self.logits)
        logits = draw_noise("normal", (len(x), self.count), like=self.deltas, generator=self.generator)
        return (self.deltas, logits.requires_grad_())

    def _offset(self, domain: Tensor, variables: tuple[Tensor, ...]) -> Tensor:
        deltas, logits = variables
        alpha = logits.softmax(-1)
        if self.is_kept:
            mixed = torch.bmm(alpha.unsqueeze(1), deltas.flatten(2)).reshape(-1, *self.shape)
            return gather_per_sample(mixed, domain)
        # One product (b, domains * k) x (domains * k, CHW) with each sample's weights in the block of its own domain:
        # domains mix freely in a batch, and no tensor of size (b, k, CHW) is ever created.
        blocks = F.one_hot(domain, self.num_domains).to(alpha.dtype).unsqueeze(-1) * alpha.unsqueeze(1)
        return (blocks.flatten(1) @ deltas.flatten(2).flatten(0, 1)).reshape(-1, *self.shape)

    def _ascend(
        self, variables: tuple[Tensor, ...], gradients: Sequence[Tensor], batch: tuple[Tensor, Tensor] | None
    ) -> None:
        variables[1].add_(compute_direction(gradients[1], "gradient", "l2"), alpha=self.weight_step_size)
        batch_dims = 2 if self.normalized_over == "perturbation" else 1
        step = self.step_size * compute_direction(gradients[0], self.ascent, self.norm, batch_dims)
        self.deltas.copy_(step_and_project(self.deltas, step, self.epsilon, self.norm, batch_dims=2))

    def _project(self) -> None:
        self.deltas.copy_(project(self.deltas, self.epsilon, self.norm, batch_dims=2))
