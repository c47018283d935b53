"""UAT: one perturbation per domain, kept across updates (Moosavi-Dezfooli et al. 2017, applied per domain)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from domainwise.perturbations.base import (
    Adversary,
    Ascent,
    Bound,
    GaussianStart,
    Norm,
    Perturbation,
    Reduction,
    compute_direction,
    draw_gaussian_start,
    gather_per_sample,
    project_outliers,
    step_and_project,
)
from domainwise.perturbations.checks import check_memory
from domainwise.perturbations.priors import Prior


class UniversalPerturbation(Perturbation):
    """One perturbation per domain, shared by all its samples and kept between batches.

    Args:
        start: Gaussian noise, either `"projected"` onto the ball, or `"unprojected"`: N(0, 1) * 2 epsilon - epsilon as
            in the released code, which lies outside the ball until the first step.

    All other arguments: see `Perturbation`.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        epsilon: float | str,
        step_size: float | None = None,
        num_domains: int = 1,
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
        check_memory("num_domains x shape", self.num_domains, *self.point_shape)
        self.starts_inside = start == "projected"
        deltas = (
            draw_gaussian_start(
                (self.num_domains, *self.point_shape), start, self.radius, norm, batch_dims=1, generator=generator
            )
            if adversary == "gradient"
            else self._draw(self.num_domains, torch.empty(0))
        )
        self.deltas = nn.Parameter(deltas, requires_grad=False)

    def _offset(self, domain: Tensor, variables: tuple[Tensor, ...]) -> Tensor:
        return gather_per_sample(variables[0], domain)

    def _ascend(
        self, variables: tuple[Tensor, ...], gradients: Sequence[Tensor], batch: tuple[Tensor, Tensor] | None
    ) -> None:
        step = self.step_size * compute_direction(gradients[0], self.ascent, self.norm)
        self.deltas.copy_(step_and_project(self.deltas, step, self.radius, self.norm))

    def _project(self) -> None:
        self.deltas.copy_(project_outliers(self.deltas, self.radius, self.norm))
