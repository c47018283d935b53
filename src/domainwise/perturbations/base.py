"""The perturbation of a batch, and the one inner loop that makes it adversarial.

The inner maximization of the paper's Algorithms 1 and 2: forward with the perturbation added, backward
to the perturbation alone, a step up, and back into the ball. A subclass says what is kept a domain, how
a sample's offset is made of it, and how it moves; the loop is written once, here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.perturbations.averaging import mean_over_ranks
from domainwise.perturbations.buffers import buffers_restored
from domainwise.perturbations.geometry import Ascent, Norm
from domainwise.perturbations.space import Bound, ImageSpace

Reduction = Literal["mean", "sum"]


class Perturbation(nn.Module, ABC):
    """A perturbation of images that depends on their domain.

    Args:
        shape: of one input, without the batch dimension.
        num_domains: how many domains have a perturbation of their own.
        epsilon: radius of the ball that a perturbation stays in. It can be set later, as a warm-up does.
        step_size: how far one ascent step goes.
        norm: of the ball, `"l2"` or `"linf"`.
        ascent: `"normalized"` steps `step_size` far along the gradient, `"gradient"` adds `step_size` times the
            gradient itself (Algorithm 1 to the letter), `"sign"` steps along its signs.
        bounds: perturbed inputs are clipped to these, numbers or tensors that broadcast to `shape`; None: not at all.
        mean, std: a number a channel, if the inputs given have been normalized with them. The perturbation, its
            radius and the bounds are of the image before that.
        loss_cap: a sample whose loss is above it does not pull in the inner step.
        reduction: of the losses of one domain's samples in the inner step.
        generator: of all random draws; its state is saved with the perturbation's.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        num_domains: int = 1,
        epsilon: float,
        step_size: float,
        norm: Norm = "l2",
        ascent: Ascent = "normalized",
        bounds: tuple[Bound, Bound] | None = (0.0, 1.0),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        loss_cap: float | None = None,
        reduction: Reduction = "mean",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_choice("norm", norm, Norm)
        check_choice("ascent", ascent, Ascent)
        check_choice("reduction", reduction, Reduction)
        if num_domains < 1:
            raise ValueError(f"num_domains must be at least 1, not {num_domains}")
        if not 0 <= step_size < float("inf"):
            raise ValueError(f"step_size must be a number of at least 0, not {step_size}")
        if loss_cap is not None and not loss_cap > 0:
            raise ValueError(f"loss_cap must be above 0, not {loss_cap}")
        self.shape = tuple(shape)
        self.num_domains = num_domains
        self.step_size = step_size
        self.norm: Norm = norm
        self.ascent: Ascent = ascent
        self.loss_cap = loss_cap
        self.reduction: Reduction = reduction
        self.generator = generator
        self._epsilon = _checked_epsilon(epsilon)
        self.space = ImageSpace(bounds, mean, std)

    @property
    def epsilon(self) -> float:
        return self._epsilon

    @epsilon.setter
    def epsilon(self, value: float) -> None:
        self._epsilon = _checked_epsilon(value)
        with torch.no_grad():
            self._confine()

    def forward(self, x: Tensor, domain: Tensor | int | None = None) -> Tensor:
        """`x` (b, *shape) plus each sample's perturbation, clipped to the bounds.

        Args:
            domain: the domain of each sample (b,), one for all, or None where there is but one domain.
        """
        self._require_kept("perturbation(x)")
        return self._perturb(x, self._domain_of_each(x, domain), tuple(self.parameters()))

    def delta(self) -> Tensor:
        """The perturbation of each domain, (num_domains, *shape), inside the ball."""
        self._require_kept("delta()")
        device = next(self.parameters()).device
        with torch.autocast(device.type, enabled=False):
            return self._offset(torch.arange(self.num_domains, device=device), tuple(self.parameters()))

    @torch.no_grad()
    def ascend_(self, gradient_scale: Tensor | None = None) -> None:
        """One projected ascent step from the gradients in `.grad`, which are then cleared.

        For the one-pass use, after `loss.backward()`. A domain without a gradient does not move.

        Args:
            gradient_scale: a factor a domain, (num_domains,). A batch mean holds each domain's own mean times its
                share of the batch; the inverse shares undo that. It matters where steps are not normalized.
        """
        self._require_kept("ascend_()")
        kept = tuple(self.parameters())
        if all(tensor.grad is None for tensor in kept):
            raise RuntimeError(
                "ascend_() found no gradients: call backward() on a loss of perturbation(x, domain) first"
            )
        gradients = [torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in kept]
        if gradient_scale is not None:
            gradients = [g * gradient_scale.reshape(-1, *[1] * (g.ndim - 1)) for g in gradients]
        self._ascend(kept, mean_over_ranks(gradients), None)
        for tensor in kept:
            tensor.grad = None

    def attack(
        self,
        x: Tensor,
        domain: Tensor | int | None,
        loss_fn: Callable[[Tensor], Tensor],
        steps: int = 1,
    ) -> Tensor:
        """The batch after `steps` ascent steps on the loss, perturbed and detached.

        Only the perturbation moves: no gradient of the network's weights is computed, and its `.grad`, parameters,
        buffers and mode stay as they are.

        Args:
            loss_fn: from a perturbed batch to the loss of each sample, (b,): give your loss `reduction="none"`.
        """
        if steps < 0:
            raise ValueError(f"steps must be at least 0, not {steps}")
        domain = self._domain_of_each(x, domain)
        weight = self._weight_of_each(domain, x.dtype)
        x = x.detach()
        point = self._start(x)
        kept = sum(1 for _ in self.parameters())
        with buffers_restored(), torch.enable_grad():
            for _ in range(steps):
                losses = loss_fn(self._perturb(x, domain, point, clip=self.clips_in_attack))
                if losses.shape != domain.shape:
                    raise ValueError(
                        f"loss_fn must return one loss a sample, {tuple(domain.shape)}, not {tuple(losses.shape)}: "
                        'use reduction="none"'
                    )
                if self.loss_cap is not None:
                    losses = losses.clamp(max=self.loss_cap)
                gradients = torch.autograd.grad((losses * weight).sum(), point)
                with torch.no_grad():
                    gradients = (*mean_over_ranks(gradients[:kept]), *gradients[kept:])
                    self._ascend(point, gradients, (x, domain))
        with torch.no_grad():
            return self._perturb(x, domain, point)

    def get_extra_state(self) -> dict[str, Tensor | None]:
        return {
            "epsilon": torch.tensor(self._epsilon, dtype=torch.float64),
            "generator": None if self.generator is None else self.generator.get_state(),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self._epsilon = float(state["epsilon"])
        if self.generator is not None and state["generator"] is not None:
            self.generator.set_state(state["generator"].cpu())

    def extra_repr(self) -> str:
        return (
            f"{self.shape}, num_domains={self.num_domains}, epsilon={self.epsilon:g}, step_size={self.step_size:g}, "
            f"norm={self.norm!r}, ascent={self.ascent!r}"
        )

    clips_in_attack = True

    @property
    def is_kept(self) -> bool:
        """Whether a perturbation lives on from batch to batch, so that it can be shown and used in one pass."""
        return True

    def _start(self, x: Tensor) -> tuple[Tensor, ...]:
        """What ascends in an attack on `x`: the parameters, then whatever is drawn afresh for this batch."""
        return tuple(self.parameters())

    @abstractmethod
    def _offset(self, domain: Tensor, point: tuple[Tensor, ...]) -> Tensor:
        """The offset of each sample, (b, *shape), made of what ascends; differentiable."""

    @abstractmethod
    def _ascend(
        self, point: tuple[Tensor, ...], gradients: Sequence[Tensor], batch: tuple[Tensor, Tensor] | None
    ) -> None:
        """Move what ascends, in place. `batch` is the attack's (x, domain), None in the one-pass use."""

    def _confine(self) -> None:
        """Bring what is kept back into the ball after its radius has changed."""

    def _perturb(self, x: Tensor, domain: Tensor, point: tuple[Tensor, ...], clip: bool = True) -> Tensor:
        # A user's autocast is for the network: in half precision the offset would leave its ball.
        with torch.autocast(x.device.type, enabled=False):
            image = self.space.image(x) + self._offset(domain, point)
            return self.space.input(self.space.clip(image) if clip else image).to(x.dtype)

    def _domain_of_each(self, x: Tensor, domain: Tensor | int | None) -> Tensor:
        if tuple(x.shape[1:]) != self.shape:
            raise ValueError(f"inputs of shape {tuple(x.shape[1:])} do not fit a perturbation of shape {self.shape}")
        if domain is None:
            if self.num_domains > 1:
                raise ValueError(
                    f"say which of the {self.num_domains} domains each sample is from: domain=None is for one"
                )
            domain = 0
        if isinstance(domain, int):
            return self._in_range(torch.full((len(x),), domain)).to(x.device)
        if domain.shape != (len(x),) or domain.dtype not in (torch.int64, torch.int32):
            raise ValueError(
                f"domain must hold one integer a sample, ({len(x)},), not {tuple(domain.shape)} {domain.dtype}"
            )
        return self._in_range(domain).to(x.device, torch.int64)

    def _in_range(self, domain: Tensor) -> Tensor:
        # On an accelerator the check would wait for the device at every step; indexing fails there by itself.
        if domain.device.type == "cpu" and domain.numel():
            low, high = domain.aminmax()
            if low < 0 or high >= self.num_domains:
                raise ValueError(f"domain must be from 0 to {self.num_domains - 1}, found {int(low)} to {int(high)}")
        return domain

    def _weight_of_each(self, domain: Tensor, dtype: torch.dtype) -> Tensor:
        """How much each sample's loss counts, so that the sum over the batch is each domain's mean (or sum)."""
        if self.reduction == "sum":
            return torch.ones_like(domain, dtype=dtype)
        return F.one_hot(domain, self.num_domains).sum(0).to(dtype).reciprocal()[domain]

    def _require_kept(self, use: str) -> None:
        if not self.is_kept:
            raise RuntimeError(
                f"{use} needs a perturbation that is kept a domain; this one is made anew for every sample. "
                "Use attack(x, domain, loss_fn)."
            )


def of_each(deltas: Tensor, domain: Tensor) -> Tensor:
    """Each sample's row, (b, *shape), of what there is a domain, (num_domains, *shape)."""
    # Flat rows, because the backward of indexing several dimensions is many times slower.
    return deltas.flatten(1).index_select(0, domain).reshape(-1, *deltas.shape[1:])


def _checked_epsilon(epsilon: float) -> float:
    if not 0 <= epsilon < float("inf"):
        raise ValueError(f"epsilon must be a number of at least 0, not {epsilon}")
    return float(epsilon)


def check_choice(name: str, given: str, choices: Any) -> None:
    if given not in get_args(choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, get_args(choices)))}, not {given!r}")
