"""Balls and directions, as pure functions.

Every function takes a tensor whose first `batch_dims` dimensions count points; a point is all that
lies in the remaining dimensions, and one norm is taken over the whole of it.
"""

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_pre_hook

from domainwise.perturbations.distributed import mean_over_ranks

Norm = Literal["l2", "linf"]
Ascent = Literal["normalized", "gradient", "sign"]


def size(points: Tensor, norm: Norm, batch_dims: int = 1) -> Tensor:
    """The norm of each point, shaped so that it broadcasts against `points`."""
    flat = points.flatten(batch_dims) if points.ndim > batch_dims else points.unsqueeze(-1)
    order = 2 if norm == "l2" else torch.inf
    sizes: Tensor = torch.linalg.vector_norm(flat, order, dim=-1)
    return sizes.reshape(*points.shape[:batch_dims], *[1] * (points.ndim - batch_dims))


def shrink(points: Tensor, epsilon: float, norm: Norm, batch_dims: int = 1) -> Tensor:
    """Points outside the ball scaled down onto its surface, which keeps their rank; differentiable."""
    # A floor under the divisor, not a branch: a point inside the ball (or at zero) gets factor 1 and a finite gradient.
    floor = max(epsilon, torch.finfo(points.dtype).tiny)
    return points * (epsilon / size(points, norm, batch_dims).clamp(min=floor))


def project(points: Tensor, epsilon: float, norm: Norm, batch_dims: int = 1) -> Tensor:
    """The nearest point of the ball of radius `epsilon` for each point."""
    return shrink(points, epsilon, norm, batch_dims) if norm == "l2" else points.clamp(-epsilon, epsilon)


def direction(gradient: Tensor, ascent: Ascent, norm: Norm, batch_dims: int = 1) -> Tensor:
    """Where a step of unit size goes: along the gradient, at length one, or at its signs.

    A gradient that is zero or not finite gives no direction: its point stays where it is.
    """
    largest = size(gradient, "linf", batch_dims)
    usable = torch.isfinite(largest) & (largest > 0)
    if ascent != "normalized":
        usable_gradient = torch.where(usable, gradient, 0.0)
        return usable_gradient if ascent == "gradient" else usable_gradient.sign()
    # Dividing by the largest entry first keeps tiny gradients from vanishing when they are squared.
    scaled = torch.where(usable, gradient / torch.where(usable, largest, 1.0), 0.0)
    return scaled / size(scaled, norm, batch_dims).clamp(min=1.0)


def random_point(
    shape: tuple[int, ...], epsilon: float, norm: Norm, *, like: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """Uniform draws from the ball, one for each entry of the first dimension of `shape`."""
    if norm == "linf":
        return (2 * draw("uniform", shape, like=like, generator=generator) - 1) * epsilon
    point = direction(draw("normal", shape, like=like, generator=generator), "normalized", "l2")
    volume = draw("uniform", (shape[0], *[1] * (len(shape) - 1)), like=like, generator=generator)
    radius = volume ** (1 / math.prod(shape[1:]))
    return point * radius * epsilon


def draw(
    kind: Literal["normal", "uniform"], shape: tuple[int, ...], *, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """N(0, 1) or U(0, 1) numbers of `like`'s type and device, drawn where the generator lives."""
    device = generator.device if generator is not None else like.device
    sample = torch.randn if kind == "normal" else torch.rand
    return sample(shape, generator=generator, dtype=like.dtype, device=device).to(like.device)


Bound = float | Tensor


class ImageSpace(nn.Module):
    """Between the inputs given and the images they stand for.

    Args:
        bounds: images are clipped to these, numbers or tensors that broadcast to one image; None: not at all.
        mean, std: a number a channel that the inputs were normalized with; None: the inputs are images.
    """

    low: Bound
    high: Bound
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        bounds: tuple[Bound, Bound] | None = (0.0, 1.0),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if (mean is None) != (std is None):
            raise ValueError("give mean and std together, or neither")
        self.is_bounded = bounds is not None
        self.is_normalized = mean is not None
        # Numbers stay numbers, which are much faster to clip to; but both bounds must be of one kind.
        have_tensor = any(isinstance(bound, Tensor) for bound in bounds or ())
        for name, bound in zip(("low", "high"), bounds or (), strict=False):
            if have_tensor:
                self.register_buffer(name, torch.as_tensor(bound, dtype=torch.get_default_dtype()), persistent=False)
            else:
                setattr(self, name, bound)
        for name, values in (("mean", mean), ("std", std)):
            if values is not None:
                self.register_buffer(name, torch.tensor(list(values)).reshape(-1, 1, 1), persistent=False)

    def image(self, x: Tensor) -> Tensor:
        return x * self.std + self.mean if self.is_normalized else x

    def clip(self, image: Tensor) -> Tensor:
        if not self.is_bounded:
            return image
        clipped: Tensor = torch.clamp(image, self.low, self.high)  # type: ignore[arg-type]
        return clipped

    def input(self, image: Tensor) -> Tensor:
        return (image - self.mean) / self.std if self.is_normalized else image


@contextmanager
def buffers_restored() -> Iterator[None]:
    """Whatever modules are called inside get their buffers back as they were.

    An attack sees the network only through a loss function, so it cannot be handed the modules. It
    notes them as they are called instead, in this thread only, before they can change anything.
    """
    thread = threading.get_ident()
    seen: set[nn.Module] = set()
    saved: list[tuple[nn.Module, str, Tensor, Tensor]] = []

    def remember(module: nn.Module, _: object) -> None:
        if threading.get_ident() != thread or module in seen:
            return
        for part in module.modules():
            if part not in seen:
                seen.add(part)
                named = part.named_buffers(recurse=False)
                saved.extend((part, name, buffer, buffer.clone()) for name, buffer in named)

    handle = register_module_forward_pre_hook(remember)
    try:
        yield
    finally:
        handle.remove()
        # The first copy of a buffer that several modules share is the true one, so it is put back last. Through
        # `data`, because a graph that was made before the attack still counts the versions of the buffers it used.
        for module, name, buffer, value in reversed(saved):
            buffer.data.copy_(value)
            module._buffers[name] = buffer


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
