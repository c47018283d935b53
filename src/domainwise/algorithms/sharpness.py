"""SAM and SAGM: descend with the gradient at the worst weights nearby (Foret et al. 2020; Wang et al. 2023)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from domainwise.perturbations.distributed import average_gradients_

if TYPE_CHECKING:
    from domainwise.algorithms.base import Algorithm, Objective


@dataclass(frozen=True)
class Sharpness:
    """The rule of a sharpness-aware step. With g the gradient at the weights and g' that at the weights plus e:

    SAM: e = radius g / |g|, and the step is along g'.
    SAGM (`alpha` is given): e = (radius / |g| - alpha) g, and the step is along (g + g') / 2.

    Args:
        radius: Length of SAM's e, one norm over all weights (rho in the papers).
        alpha: How much SAGM aligns g and g'; None is SAM.
    """

    radius: float = 0.05
    alpha: float | None = None

    def descend_(self, algorithm: "Algorithm", compute: Callable[[], "Objective"]) -> dict[str, Tensor]:
        """Take one step on the loss that `compute` returns, and return what it reports at the original weights.

        Both passes see the same batch, random draws, dropout and buffers. Buffers keep what the first pass writes to
        them: batch-norm statistics, and the method's own moving averages, are those of the original weights.
        """
        optimizer, generator = algorithm.optimizer, algorithm.generator
        weights = [
            parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad
        ]
        draws = None if generator is None else generator.get_state()
        buffers_before = [buffer.clone() for buffer in algorithm.buffers()]
        optimizer.zero_grad()
        loss, measurements = compute()
        loss.backward()
        average_gradients_(weights)  # the ranks must climb to the same point

        moved = [weight for weight in weights if weight.grad is not None]
        gradients = [weight.grad.clone() for weight in moved if weight.grad is not None]
        start = [weight.detach().clone() for weight in moved]
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        # A zero gradient has no direction, and nothing to climb.
        scale = torch.where(norm > 0, self.radius / norm, 0.0) - (self.alpha or 0.0)
        with torch.no_grad():
            torch._foreach_add_(moved, torch._foreach_mul(gradients, scale))
        buffers_after = [buffer.clone() for buffer in algorithm.buffers()]
        _restore_buffers_(algorithm, buffers_before)

        if generator is not None and draws is not None:
            generator.set_state(draws)
        algorithm.seed_dropout_()
        torch.clear_autocast_cache()  # it holds the weights before the climb
        optimizer.zero_grad()
        compute()[0].backward()

        with torch.no_grad():
            torch._foreach_copy_(moved, start)
        _restore_buffers_(algorithm, buffers_after)
        if self.alpha is not None:
            for weight, gradient in zip(moved, gradients, strict=True):
                weight.grad = gradient if weight.grad is None else (gradient + weight.grad) / 2
        algorithm.step_(optimizer)
        return measurements


@torch.no_grad()
def _restore_buffers_(algorithm: "Algorithm", values: Iterable[Tensor]) -> None:
    for buffer, value in zip(algorithm.buffers(), values, strict=True):
        buffer.copy_(value)
