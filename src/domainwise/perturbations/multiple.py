"""MAT: k perturbations per domain, of which each sample gets one or a mixture (the paper's Algorithm 1)."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.perturbations.base import (
    Adversary,
    Ascent,
    Bound,
    GaussianStart,
    Norm,
    Perturbation,
    Reduction,
    as_leaf,
    compute_direction,
    draw_gaussian_start,
    draw_noise,
    gather_per_sample,
    project_outliers,
    scale_into_ball,
    steepest_ascent,
    step_and_project,
)
from domainwise.perturbations.checks import (
    check_choice,
    check_integer,
    check_memory,
    check_nonnegative,
    check_positive,
    to_number,
)
from domainwise.perturbations.distributed import broadcast_from_first_rank_, gather_over_ranks
from domainwise.perturbations.low_rank import leading_singular_vectors
from domainwise.perturbations.priors import Prior

Weights = Literal["assigned", "soft", "subspace", "domain", "sample"]
NormalizedOver = Literal["perturbation", "stack"]


def default_ascent(weights: Weights, norm: Norm) -> Ascent:
    """Return the ascent of perturbations with these mixing weights: signs would leave a subspace."""
    return "normalized" if weights == "subspace" else steepest_ascent(norm)


class MultiplePerturbation(Perturbation):
    """`count` perturbations per domain, of which each sample gets one or a mixture.

    With one set of mixing weights per domain (`weights="domain"`, the paper's Algorithm 1) all samples of a domain get
    the same mixture, so the adversary is that of `UniversalPerturbation`. The perturbations differ if the weights
    depend on the sample's own gradient, which the same backward pass yields: `"assigned"`, `"soft"` and `"subspace"`.
    The perturbations of a domain's images then span `count` dimensions.

    Args:
        count: Number of perturbations per domain, the paper's k.
        weights: `"assigned"` gives each sample the perturbation with the largest inner product with its gradient, and
            each perturbation ascends on its own samples. `"soft"` mixes them, with a softmax of the cosines as weights.
            `"subspace"` projects each sample's gradient on the `count` leading directions of its domain's gradients,
            on which the unit gradients have the largest squared projections. `"domain"` learns one set of
            mixing weights per domain and keeps it across updates. `"sample"` draws logits from N(0, 1) for every sample
            in every attack and moves them by one step, as in the released code.
        weight_step_size: Size of the raw gradient step on the logits, the paper's eta (`"domain"` and `"sample"`).
        temperature: Temperature of the softmax (`"soft"`).
        draws: Not used: `adversary="worst_of"` draws `count` perturbations per domain, and each sample gets its worst.
        memory: Weight of all earlier batches relative to the current one (`"subspace"`), from 0 to 1.
        normalized_over: With `ascent="normalized"`, scale the gradient of each `"perturbation"` to norm 1, or that of
            all perturbations of a domain together (`"stack"`), as in the released code.
        start: As for `UniversalPerturbation`.

    All other arguments: see `Perturbation`.
    """

    # An assigned perturbation without samples for this many updates starts again from the sample explained worst.
    patience = 10
    # Whether an attack leaves what is kept between batches unchanged, and only computes each sample's perturbation.
    is_frozen = False

    directions: Tensor
    idle: Tensor

    def __init__(
        self,
        shape: Sequence[int],
        *,
        epsilon: float | str,
        step_size: float | None = None,
        num_domains: int = 1,
        count: int = 10,
        weights: Weights = "assigned",
        weight_step_size: float = 0.001,
        temperature: float = 0.1,
        memory: float = 0.9,
        normalized_over: NormalizedOver = "perturbation",
        start: GaussianStart = "projected",
        warmup_steps: int = 0,
        norm: Norm = "l2",
        ascent: Ascent | None = None,
        bounds: tuple[Bound, Bound] | None = (0.0, 1.0),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        loss_cap: float | None = None,
        reduction: Reduction = "mean",
        prior: Prior | None = None,
        adversary: Adversary = "gradient",
        draws: int = 3,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            shape,
            epsilon=epsilon,
            step_size=step_size,
            num_domains=num_domains,
            warmup_steps=warmup_steps,
            norm=norm,
            ascent=ascent,
            bounds=bounds,
            mean=mean,
            std=std,
            loss_cap=loss_cap,
            reduction=reduction,
            prior=prior,
            adversary=adversary,
            draws=draws,
            generator=generator,
        )
        check_choice("weights", weights, Weights)
        check_choice("normalized_over", normalized_over, NormalizedOver)
        if not 0 <= to_number(memory) <= 1:
            raise ValueError(f"memory must be between 0 and 1, got {memory!r}")
        if weights == "subspace" and ascent == "sign":
            raise ValueError("weights='subspace' does not support ascent='sign', which leaves the subspace")
        if ascent is None:
            self.ascent = default_ascent(weights, norm)
        self.count = check_integer("count", count, minimum=1)
        if adversary != "gradient" and weights != "assigned":
            raise ValueError(f"adversary={adversary!r} assigns a perturbation to each sample; use weights='assigned'")
        check_memory("num_domains x count x shape", self.num_domains, self.count, *self.point_shape)
        self.weight_step_size = check_nonnegative("weight_step_size", weight_step_size)
        self.temperature = check_positive("temperature", temperature)
        self.memory = to_number(memory)
        self.weights: Weights = weights
        self.normalized_over: NormalizedOver = normalized_over
        self.starts_inside = start == "projected"
        deltas = (
            draw_gaussian_start(
                (self.num_domains, self.count, *self.point_shape),
                start,
                self.radius,
                norm,
                batch_dims=2,
                generator=generator,
            )
            if adversary == "gradient"
            else self._draw_components(torch.empty(0))
        )
        if weights == "subspace":
            # The leading gradient directions, each as long as its singular value; none are known yet.
            self.register_buffer("directions", torch.zeros_like(deltas))
            # Attacks start at the image itself, where saturated pixels would have no gradient.
            self.space.passes_gradients = True
        else:
            self.deltas = nn.Parameter(deltas, requires_grad=False)
        if weights == "assigned":
            self.register_buffer("idle", torch.zeros(self.num_domains, self.count, dtype=torch.int64))
        if weights == "domain":
            logits = draw_noise("normal", (self.num_domains, self.count), like=self.deltas, generator=generator)
            self.logits = nn.Parameter(logits, requires_grad=False)

    @property
    def is_kept(self) -> bool:
        return self.weights == "domain"

    @property
    def is_shared_over_ranks(self) -> bool:
        return not self.is_frozen

    def components(self) -> Tensor:
        """Return the perturbations that samples get or mix, (num_domains, count, *point_shape)."""
        if self.weights == "subspace":
            return self.radius * compute_direction(self.directions, "normalized", self.norm, batch_dims=2)
        return self.deltas

    def mixing_weights(self) -> Tensor:
        """Return the mixing weights of each domain, (num_domains, count)."""
        self._require_kept("mixing_weights()")
        return self.logits.softmax(-1)

    def _start(self, x: Tensor, domain: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        if self.weights == "domain":
            return super()._start(x, domain)
        if self.weights == "sample":
            logits = draw_noise("normal", (len(x), self.count), like=self.deltas, generator=self.generator)
            return (as_leaf(self.deltas),), (logits.requires_grad_(),)
        # Before a sample has a gradient, it gets the mean of its domain's perturbations: for one, that is UAT.
        start = torch.zeros_like(self.directions[:, 0]) if self.weights == "subspace" else self.deltas.mean(1)
        return (), (gather_per_sample(start, domain).requires_grad_(),)

    def _offset(self, domain: Tensor, variables: tuple[Tensor, ...]) -> Tensor:
        if self.weights == "domain":
            deltas, logits = variables
            mixed = torch.bmm(logits.softmax(-1).unsqueeze(1), deltas.flatten(2)).reshape(-1, *self.point_shape)
            return gather_per_sample(mixed, domain)
        if self.weights == "sample":
            deltas, logits = variables
            return self._mix(logits.softmax(-1), deltas, domain)
        return variables[0]

    def _ascend(
        self, variables: tuple[Tensor, ...], gradients: Sequence[Tensor], batch: tuple[Tensor, Tensor] | None
    ) -> None:
        if self.weights in ("domain", "sample"):
            variables[1].add_(compute_direction(gradients[1], "gradient", "l2"), alpha=self.weight_step_size)
            if not self.is_frozen:
                self._move(gradients[0])
            return
        assert batch is not None
        (offset,), (_, domain) = variables, batch
        # A sample without a finite gradient moves nothing, instead of spoiling the products of all samples.
        gradient = compute_direction(gradients[0], "gradient", "l2")
        if not self.is_frozen:
            update = self._update_directions if self.weights == "subspace" else self._update_components
            update(gather_over_ranks(gradient.flatten(1)), gather_over_ranks(domain))
        if self.weights == "subspace":
            projected = self._project_on_directions(gradient, domain)
            step = self.step_size * compute_direction(projected, self.ascent, self.norm)
            moved = self._project_on_directions(offset, domain) + step
            offset.copy_(scale_into_ball(moved, self.radius, self.norm))
        else:
            offset.copy_(self._mix(self._weigh(gradient.flatten(1), domain), self.deltas, domain))

    def _draw_components(self, like: Tensor) -> Tensor:
        return self._draw(self.num_domains * self.count, like).reshape(self.num_domains, self.count, *self.point_shape)

    def _choose_worst(self, x: Tensor, domain: Tensor, losses_of: Callable[[Tensor], Tensor]) -> Tensor:
        """Draw all perturbations again, and return each sample's worst among those of its domain."""
        drawn = self.deltas.clone() if self.is_frozen else self._draw_components(self.deltas)
        if self.is_shared_over_ranks:
            broadcast_from_first_rank_([drawn])
        self.deltas.copy_(drawn)
        losses = torch.stack([losses_of(gather_per_sample(drawn[:, index], domain)) for index in range(self.count)])
        return self._gather(losses.argmax(0), domain)

    def _choose_random(self, x: Tensor, domain: Tensor) -> Tensor:
        if not self.is_frozen:
            self._grow_with_radius_()
        chosen = draw_noise("uniform", (len(x),), like=self.deltas, generator=self.generator) * self.count
        return self._gather(chosen.long().clamp(max=self.count - 1), domain)

    def _gather(self, index: Tensor, domain: Tensor) -> Tensor:
        """Return for each sample the perturbation of its domain with this index."""
        return gather_per_sample(self.deltas.flatten(0, 1), domain * self.count + index)

    def _move(self, gradient: Tensor) -> None:
        """Take one projected step along the gradient of each perturbation, (num_domains, count, *point_shape)."""
        batch_dims = 2 if self.normalized_over == "perturbation" else 1
        step = self.step_size * compute_direction(gradient, self.ascent, self.norm, batch_dims)
        self.deltas.copy_(step_and_project(self.deltas, step, self.radius, self.norm, batch_dims=2))

    def _mix(self, weights: Tensor, parts: Tensor, domain: Tensor) -> Tensor:
        """Return sum_i weights[:, i] parts[domain, i] for each sample, (b, *point_shape)."""
        return (self._in_blocks(weights, domain) @ parts.flatten(2).flatten(0, 1)).reshape(-1, *self.point_shape)

    def _in_blocks(self, weights: Tensor, domain: Tensor) -> Tensor:
        """Return (b, num_domains * count) with the weights (b, count) in the block of each sample's own domain.

        Products with it mix domains freely, and no tensor of size (b, count, *shape) is ever created.
        """
        return (F.one_hot(domain, self.num_domains).to(weights.dtype).unsqueeze(-1) * weights.unsqueeze(1)).flatten(1)

    def _products(self, rows: Tensor, parts: Tensor, domain: Tensor) -> Tensor:
        """Return the inner products of each sample's row with the parts of its domain, (b, count)."""
        products = (rows @ parts.flatten(2).flatten(0, 1).T).reshape(-1, self.num_domains, self.count)
        return products[torch.arange(len(rows), device=rows.device), domain]

    def _weigh(self, gradients: Tensor, domain: Tensor) -> Tensor:
        """Return the weights of each sample's perturbations, (b, count), from its gradient, (b, values)."""
        if self.weights == "assigned":
            nearest = self._products(gradients, self.deltas, domain).argmax(1)
            return F.one_hot(nearest, self.count).to(gradients.dtype)
        deltas = compute_direction(self.deltas, "normalized", "l2", batch_dims=2)
        cosines = self._products(compute_direction(gradients, "normalized", "l2"), deltas, domain)
        return (cosines / self.temperature).softmax(-1)

    def _update_components(self, gradients: Tensor, domain: Tensor) -> None:
        """Move each perturbation along the gradients (n, values) of its own samples."""
        if len(gradients) == 0:
            return
        weights = self._weigh(gradients, domain)
        blocks = self._in_blocks(weights, domain)
        self._move((blocks.T @ gradients).reshape(self.deltas.shape))
        if self.weights == "assigned":
            self._restart_idle(gradients, domain, is_used=blocks.any(0).reshape(self.idle.shape))

    def _restart_idle(self, gradients: Tensor, domain: Tensor, is_used: Tensor) -> None:
        """Restart the longest idle perturbation of each domain from the sample that the others explain worst.

        That is the sample with the largest gap, to first order, between the loss that a perturbation of its own could
        reach and the loss that its domain's perturbations reach.
        """
        is_present = F.one_hot(domain, self.num_domains).any(0)
        self.idle.copy_(torch.where(is_used, 0, self.idle + is_present.unsqueeze(1)))
        # To first order, a loss rises inside a ball by at most the radius times the dual norm of its gradient.
        reach = self.radius * gradients.norm(1 if self.norm == "linf" else 2, dim=1)
        gap = reach - self._products(gradients, self.deltas, domain).amax(1)
        gaps = torch.where(F.one_hot(domain, self.num_domains).T.bool(), gap, -torch.inf)
        worst = compute_direction(gradients[gaps.argmax(1)], steepest_ascent(self.norm), self.norm)
        place = (torch.arange(self.num_domains, device=domain.device), self.idle.argmax(1))
        should_restart = is_present & (self.idle[place] >= self.patience) & worst.any(1)
        restarted = scale_into_ball(self.radius * worst, self.radius, self.norm).reshape(-1, *self.point_shape)
        is_restarted = should_restart.reshape(-1, *[1] * len(self.point_shape))
        self.deltas[place] = torch.where(is_restarted, restarted, self.deltas[place])
        self.idle[place] = torch.where(should_restart, 0, self.idle[place])

    def _update_directions(self, gradients: Tensor, domain: Tensor) -> None:
        """Add the gradients (n, values) of a batch to the leading singular directions of each domain's gradients.

        The directions are those of the stack of the earlier ones, with weight `memory`, and this batch: an incremental
        SVD, computed from the stack's small Gram matrix. Each sample counts equally, whatever the size of its gradient.
        """
        unit = compute_direction(gradients, "normalized", "l2")
        for index in range(self.num_domains):
            rows = unit[domain == index]
            if len(rows) == 0:
                continue
            stack = torch.cat([math.sqrt(self.memory) * self.directions[index].flatten(1), rows])
            leading = leading_singular_vectors(stack, self.count).T @ stack
            # Directions that the gradients do not have are rounding errors, and not orthogonal to the others.
            lengths = leading.norm(dim=1, keepdim=True)
            leading = torch.where(lengths > 1e-5 * lengths.max(), leading, 0.0)
            self.directions[index].zero_()[: len(leading)] = leading.reshape(-1, *self.point_shape)

    def _project_on_directions(self, points: Tensor, domain: Tensor) -> Tensor:
        """Project each sample's point (b, *point_shape) on the span of its domain's directions."""
        basis = compute_direction(self.directions, "normalized", "l2", batch_dims=2)
        return self._mix(self._products(points.flatten(1), basis, domain), basis, domain)

    def _project(self) -> None:
        if self.weights != "subspace":
            self.deltas.copy_(project_outliers(self.deltas, self.radius, self.norm, batch_dims=2))
