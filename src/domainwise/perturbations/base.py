"""Projected gradient ascent on perturbations: the attack loop, then the start, step and projection it is made of.

Subclasses say which tensors ascend, how these become one offset per sample, and how one step moves them.
"""

import itertools
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.perturbations.checks import (
    check_bounds,
    check_choice,
    check_device,
    check_finite,
    check_generator,
    check_gradient_scale,
    check_gradients,
    check_inputs,
    check_integer,
    check_losses,
    check_memory,
    check_nonnegative,
    check_positive,
    check_shape,
    check_statistics,
    expand_domain,
)
from domainwise.perturbations.device import send_to
from domainwise.perturbations.distributed import (
    broadcast_from_first_rank_,
    harmonic_mean_over_ranks,
    mean_over_ranks,
    sum_over_ranks,
)
from domainwise.perturbations.network import leave_modules_unchanged
from domainwise.perturbations.priors import PixelPrior, Prior, check_prior
from domainwise.perturbations.radius import parse_radius, split_radius

Norm = Literal["l2", "linf"]
Ascent = Literal["normalized", "gradient", "sign"]
Reduction = Literal["mean", "sum"]
GaussianStart = Literal["projected", "unprojected"]
Adversary = Literal["gradient", "worst_of", "random"]
Bound = float | Tensor


class Perturbation(nn.Module, ABC):
    """A perturbation of images that depends on their domain.

    Its parameters require no gradient: only `attack` and `ascend_` move them. An optimizer over all parameters of a
    module that contains the perturbation therefore leaves it alone, instead of moving it down.

    Args:
        shape: Shape of one input, without the batch dimension.
        epsilon: Radius of the ball that each perturbation stays in, a number or a string such as `"2/255 rms"`, see
            `parse_radius`. Can be changed later.
        step_size: Length of one ascent step. None: the radius, so that one step can reach any point of the ball.
        num_domains: Number of domains, each with its own perturbation.
        warmup_steps: Number of updates (calls of `attack` or `ascend_`) over which the radius grows linearly to
            `epsilon`. Training often fails to start at a radius that it handles well later on.
        norm: Norm of the ball, `"l2"` or `"linf"`.
        ascent: `"normalized"` takes steps of length `step_size` along the gradient, `"gradient"` adds `step_size` times
            the gradient itself (Algorithm 1 to the letter), `"sign"` adds `step_size` times its signs. None: the
            steepest step of the norm, `"normalized"` for l2 and `"sign"` for linf (FGSM, PGD).
        bounds: Perturbed inputs are clipped to this range, given as numbers or as tensors that broadcast to `shape`.
            None disables clipping.
        mean, std: Per-channel statistics, if the inputs are already normalized. The perturbation, its radius and the
            bounds then still refer to the image before normalization.
        loss_cap: Samples whose loss exceeds this value do not contribute to the ascent step.
        reduction: How the losses of one domain's samples are combined in the ascent step.
        prior: What may change: a `PixelPrior` (default), `FilterPrior`, `TonePrior`, `SpectrumPrior` or `FeaturePrior`.
            The radius is that of the prior's own coordinates.
        adversary: Who chooses the perturbation. `"gradient"` takes ascent steps. `"worst_of"` draws several at random
            in every attack and keeps the one with the largest loss, by forward passes alone. `"random"` has no
            adversary, as a control: a new draw in every attack for perturbations that are made per sample, and the
            random start, for good, for those that are kept per domain.
        draws: Number of draws of `"worst_of"`.
        generator: Source of all random draws. Its state is part of the `state_dict`.
    """

    # Whether the loss inside `attack` is taken at the clipped image.
    clips_in_attack = True
    # Whether what is kept is in the ball from the start. If not, it may be saved and loaded outside of it.
    starts_inside = True

    def __init__(
        self,
        shape: Sequence[int],
        *,
        epsilon: float | str,
        step_size: float | None = None,
        num_domains: int = 1,
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
        super().__init__()
        refuse_inference_mode("a perturbation")
        check_choice("norm", norm, Norm)
        ascent = steepest_ascent(norm) if ascent is None else ascent
        check_choice("ascent", ascent, Ascent)
        check_choice("reduction", reduction, Reduction)
        check_choice("adversary", adversary, Adversary)
        check_generator(generator)
        self.shape = check_shape(shape)
        self.prior = check_prior(prior)
        self.point_shape = self.prior.point_shape(self.shape)
        self._unit = self.prior.unit(self.point_shape, norm)
        self.adversary: Adversary = adversary
        self.draws = check_integer("draws", draws, minimum=1)
        self.num_domains = check_integer("num_domains", num_domains, minimum=1)
        check_memory("num_domains", self.num_domains)
        self.warmup_steps = check_integer("warmup_steps", warmup_steps, minimum=0)
        self.updates = 0
        self.norm: Norm = norm
        self.ascent: Ascent = ascent
        self.loss_cap = None if loss_cap is None else check_positive("loss_cap", loss_cap)
        self.reduction: Reduction = reduction
        self.generator = generator
        self._epsilon = self._parse_radius(epsilon)
        self._step_size = None if step_size is None else check_nonnegative("step_size", step_size)
        self.space = ImageSpace(check_bounds(bounds, self.shape), check_statistics(mean, std, self.shape))
        if not self.is_in_pixels:
            # Attacks may start at the image itself, where saturated pixels would have no gradient.
            self.space.passes_gradients = True
        # Calls whose inputs are compared with the bounds; each comparison waits for the device.
        self._remaining_checks = 3
        self._leaves: tuple[Tensor, ...] = ()
        self._is_synchronized = False

    @property
    def epsilon(self) -> float:
        return self._epsilon

    @epsilon.setter
    def epsilon(self, value: float | str) -> None:
        self._epsilon = self._parse_radius(value)
        with torch.no_grad():
            self._project()

    @property
    def radius(self) -> float:
        """Radius of the next update: `epsilon`, or a part of it during the warm-up."""
        return self._epsilon * min(1.0, (self.updates + 1) / self.warmup_steps) if self.warmup_steps else self._epsilon

    @property
    def step_size(self) -> float:
        return self.radius if self._step_size is None else self._step_size

    @step_size.setter
    def step_size(self, value: float | None) -> None:
        self._step_size = None if value is None else check_nonnegative("step_size", value)

    def _parse_radius(self, value: float | str) -> float:
        if not self.is_in_pixels and split_radius(value)[1]:
            prior = f"prior {self.prior.name!r}"
            raise ValueError(f"epsilon must be a number without unit for {prior}, got {value!r}; rms is one of pixels")
        return parse_radius(value, self.shape, self.norm)

    @property
    def is_in_pixels(self) -> bool:
        """Whether the perturbation is added to the pixels of an image."""
        return isinstance(self.prior, PixelPrior)

    @property
    def is_kept(self) -> bool:
        """Whether each domain's perturbation is kept between batches, as `forward`, `delta` and `ascend_` require."""
        return True

    @property
    def is_shared_over_ranks(self) -> bool:
        """Whether an attack depends on the samples of other ranks, which must then attack equally often."""
        return True

    def attack(
        self,
        x: Tensor,
        domain: Tensor | int | None,
        loss_fn: Callable[[Tensor], Tensor],
        steps: int = 1,
    ) -> Tensor:
        """Take `steps` ascent steps on the loss and return the perturbed batch, detached.

        Only the perturbation moves: no gradient with respect to the network's weights is computed, and the network's
        `.grad`, parameters, buffers and train/eval mode are left unchanged.

        Args:
            x: Batch of inputs, (b, *shape).
            domain: Domain index of each sample (b,), one index for all samples, or None if there is only one domain.
            loss_fn: Maps a perturbed batch to one loss per sample, (b,); use `reduction="none"`.
            steps: Number of ascent steps.
        """
        if torch.compiler.is_compiling():
            # The code around an attack can be compiled, and so can the model inside; the search for it cannot.
            reason = "attack() cannot be part of a full graph; compile the model that it calls instead"
            x_adv: Tensor = torch.compiler.disable(self._attack, reason=reason)(x, domain, loss_fn, steps)
            return x_adv
        return self._attack(x, domain, loss_fn, steps)

    def _attack(
        self, x: Tensor, domain: Tensor | int | None, loss_fn: Callable[[Tensor], Tensor], steps: int
    ) -> Tensor:
        refuse_inference_mode("attack()")
        steps = check_integer("steps", steps, minimum=0)
        if not callable(loss_fn):
            raise TypeError(
                f"loss_fn must be a function of a batch, such as lambda x: F.cross_entropy(model(x), y, "
                f'reduction="none"), got {type(loss_fn).__name__}'
            )
        domain = self._check_batch(x, domain)
        # Outside of inference mode, a copy of what was created there can be differentiated.
        x, domain = (each.clone() if each.is_inference() else each.detach() for each in (x, domain))
        is_shared = steps > 0 and self.is_shared_over_ranks
        weights = self._loss_weights(domain, x.dtype, is_shared)
        self._synchronize_()
        if self.adversary != "gradient":
            return self._attack_by_draws(x, domain, loss_fn, steps, weights)
        kept, fresh = self._start(x, domain)
        num_kept = len(kept)
        variables = (*kept, *fresh)
        with leave_modules_unchanged(loss_fn, Perturbation), torch.enable_grad():
            for _ in range(steps):
                points = self._offset(domain, variables)
                losses = self._compute_losses(x, points, loss_fn, clip=self.clips_in_attack)
                gradients = check_gradients(torch.autograd.grad((losses * weights).sum(), variables, allow_unused=True))
                # As in `_perturb`: products in half precision would leave the ball and the rank.
                with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
                    if is_shared:
                        gradients = (*sum_over_ranks(gradients[:num_kept]), *gradients[num_kept:])
                    self._ascend(variables, gradients, (x, domain))
        with torch.no_grad():
            x_adv = self._perturb(x, self._offset(domain, variables))
        self.updates += steps > 0
        return x_adv

    @torch.no_grad()
    def _attack_by_draws(
        self, x: Tensor, domain: Tensor, loss_fn: Callable[[Tensor], Tensor], steps: int, weights: Tensor
    ) -> Tensor:
        """Attack with random draws instead of ascent steps."""
        if steps and self.adversary == "worst_of":
            with leave_modules_unchanged(loss_fn, Perturbation):
                points = self._choose_worst(
                    x, domain, lambda points: self._compute_losses(x, points, loss_fn).to(weights.dtype) * weights
                )
        else:
            points = self._choose_random(x, domain)
        self.updates += steps > 0
        return self._perturb(x, points)

    def _compute_losses(
        self, x: Tensor, points: Tensor, loss_fn: Callable[[Tensor], Tensor], clip: bool = True
    ) -> Tensor:
        """Return the loss of each sample with its point, at most `loss_cap`."""
        perturbed = self._perturb(x, points, clip)
        with self.prior.active():
            losses = loss_fn(perturbed)
        check_losses(losses, len(x))
        return losses if self.loss_cap is None else losses.clamp(max=self.loss_cap)

    @contextmanager
    def applied(self, index: Tensor | None = None) -> Iterator[None]:
        """Context in which the network sees what the last `attack` or call made of its batch.

        It is needed for a `FeaturePrior` only, whose perturbations are not in the images.

        Args:
            index: Which samples of the network's batch are those of the attack (default: the first ones). The others
                stay as they are.
        """
        with self.prior.active(index):
            yield

    def forward(self, x: Tensor, domain: Tensor | int | None = None) -> Tensor:
        """Return `x` (b, *shape) plus each sample's perturbation, clipped to the bounds.

        Args:
            x: Batch of inputs, (b, *shape).
            domain: As for `attack`.
        """
        self._require_kept("perturbation(x)")
        return self._perturb(x, self._offset(self._check_batch(x, domain), self._track_parameters()))

    def delta(self) -> Tensor:
        """Return the point of each domain inside the ball, (num_domains, *point_shape): in pixels, what is added."""
        self._require_kept("delta()")
        device = next(self.parameters()).device
        with torch.autocast(device.type, enabled=False):
            return self._offset(torch.arange(self.num_domains, device=device), tuple(self.parameters()))

    @torch.no_grad()
    def ascend_(self, gradient_scale: Tensor | None = None, scaler: torch.amp.GradScaler | None = None) -> None:
        """Take one projected ascent step along the gradients that `backward` left, then clear them.

        For one-pass training: call it after `loss.backward()`, or after several to accumulate their gradients. Domains
        without a gradient do not move.

        Args:
            gradient_scale: One factor per domain, (num_domains,). The gradient of a batch mean contains each domain's
                own mean times its share of the batch; the inverse shares undo that. It only matters if steps are not
                normalized. With several ranks, each passes the inverse shares of its own batch, infinite for a domain
                that it does not have.
            scaler: The scaler of the loss in mixed precision, before its `update()`: gradients contain its scale, which
                would otherwise be a part of steps that are not normalized.
        """
        self._require_kept("ascend_()")
        if self.adversary != "gradient":
            raise RuntimeError(f"ascend_() follows gradients; adversary={self.adversary!r} needs attack()")
        if gradient_scale is not None:
            check_gradient_scale(gradient_scale, self.num_domains)
        if not (scaler is None or isinstance(scaler, torch.amp.GradScaler)):
            raise TypeError(f"scaler must be a torch.amp.GradScaler or None, got {type(scaler).__name__}")
        if all(leaf.grad is None for leaf in self._leaves):
            raise RuntimeError(
                "ascend_() found no gradients; call backward() on a loss of perturbation(x, domain) first"
            )
        self._synchronize_()
        gradients = mean_over_ranks(
            [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in self._leaves]
        )
        if gradient_scale is not None:
            # Undoes the mean of the shares that a domain has on each rank, which may be 0.
            gradient_scale = harmonic_mean_over_ranks(gradient_scale.to(gradients[0]))
            gradients = [g * gradient_scale.reshape(-1, *[1] * (g.ndim - 1)) for g in gradients]
        if scaler is not None:
            # Unlike `get_scale`, this does not wait for the device.
            scale = scaler.scale(torch.ones((), device=gradients[0].device))
            gradients = [gradient / scale for gradient in gradients]
        with torch.autocast(gradients[0].device.type, enabled=False):
            self._ascend(tuple(self.parameters()), gradients, None)
        self.updates += 1
        self._leaves = ()

    def get_extra_state(self) -> dict[str, Tensor | None]:
        return {
            "epsilon": torch.tensor(self._epsilon, dtype=torch.float64),
            "updates": torch.tensor(self.updates),
            "generator": None if self.generator is None else self.generator.get_state(),
        }

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        self._epsilon, self.updates, generator_state = parse_extra_state(state, self.generator)
        if self.generator is not None and generator_state is not None:
            self.generator.set_state(generator_state)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        # Before anything changes: torch copies the parameters first.
        if (key := prefix + "_extra_state") in state_dict:
            parse_extra_state(state_dict[key], self.generator)
        for name, _ in itertools.chain(self.named_parameters(), self.named_buffers()):
            if isinstance(tensor := state_dict.get(prefix + name), Tensor):
                check_finite(name, tensor)
        super()._load_from_state_dict(state_dict, prefix, *args)
        if self.starts_inside:
            with torch.no_grad():
                self._project()

    def extra_repr(self) -> str:
        by = f"ascent={self.ascent!r}" if self.adversary == "gradient" else f"adversary={self.adversary!r}"
        prior = "" if self.is_in_pixels else f", prior={self.prior!r}"
        return (
            f"{self.shape}, num_domains={self.num_domains}, epsilon={self.epsilon:g}, step_size={self.step_size:g}, "
            f"norm={self.norm!r}, {by}{prior}"
        )

    def _start(self, x: Tensor, domain: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the tensors that ascend in an attack on `x`: those that are kept, and those of this batch alone."""
        return tuple(as_leaf(parameter) for parameter in self.parameters()), ()

    def _track_parameters(self) -> tuple[Tensor, ...]:
        """Return the parameters as leaves, which collect the gradients of all passes until the next `ascend_`."""
        parameters = tuple(self.parameters())
        if not torch.is_grad_enabled():
            return parameters
        # The memory of a parameter changes when it moves to another device or is assigned.
        pairs = zip(self._leaves, parameters, strict=False)
        if not self._leaves or not all(each.device == own.device and each.is_set_to(own) for each, own in pairs):
            self._synchronize_()
            self._leaves = tuple(as_leaf(parameter) for parameter in parameters)
        return self._leaves

    @torch.no_grad()
    def _synchronize_(self) -> None:
        """Start from what the first rank has, once: unless they were seeded alike, ranks draw different starts."""
        if not self._is_synchronized:
            broadcast_from_first_rank_([*self.parameters(), *self.buffers()])
            self._is_synchronized = True

    @abstractmethod
    def _offset(self, domain: Tensor, variables: tuple[Tensor, ...]) -> Tensor:
        """Compute the point of each sample, (b, *point_shape), from the tensors that ascend; differentiable."""

    @abstractmethod
    def _ascend(
        self, variables: tuple[Tensor, ...], gradients: Sequence[Tensor], batch: tuple[Tensor, Tensor] | None
    ) -> None:
        """Move the variables one step, in place. `batch` is (x, domain) inside `attack`, None inside `ascend_`."""

    def _draw(self, count: int, like: Tensor) -> Tensor:
        """Draw random points inside the ball, (count, *point_shape)."""
        shape = (count, *self.point_shape)
        if not self.prior.has_own_draws:
            return draw_in_ball(shape, self.radius, self.norm, like=like, generator=self.generator)
        noise = draw_noise("normal", shape, like=like, generator=self.generator)
        uniform = draw_noise("uniform", (count, 2), like=like, generator=self.generator)
        return project(self.prior.draw(noise, uniform) / self._unit, self.radius, self.norm)

    def _choose_worst(self, x: Tensor, domain: Tensor, losses_of: Callable[[Tensor], Tensor]) -> Tensor:
        """Keep the draw of each domain with the largest loss, and return each sample's point."""
        chosen = self._choose_by_group(domain, self.num_domains, next(self.parameters()), losses_of)
        next(self.parameters()).copy_(chosen)
        return gather_per_sample(chosen, domain)

    def _choose_by_group(
        self, group: Tensor, count: int, like: Tensor, losses_of: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return the draw with the largest loss for each of `count` groups of samples, (count, *point_shape)."""
        best, largest = torch.empty(0), torch.empty(0)
        for number in range(self.draws):
            drawn = self._draw(count, like)
            if self.is_shared_over_ranks:
                broadcast_from_first_rank_([drawn])
            losses = losses_of(gather_per_sample(drawn, group))
            sums = torch.zeros(count, dtype=losses.dtype, device=losses.device).index_add(0, group, losses)
            if self.is_shared_over_ranks:
                (sums,) = sum_over_ranks([sums])
            if number == 0:
                best, largest = drawn, sums
                continue
            is_larger = sums > largest
            best = torch.where(is_larger.reshape(-1, *[1] * (drawn.ndim - 1)), drawn, best)
            largest = torch.where(is_larger, sums, largest)
        return best

    def _choose_random(self, x: Tensor, domain: Tensor) -> Tensor:
        """Return each sample's point without looking at losses: the start of its domain."""
        self._grow_with_radius_()
        return self._offset(domain, tuple(self.parameters()))

    def _grow_with_radius_(self) -> None:
        """Scale what was drawn at the start as the radius grows during the warm-up."""
        if self.warmup_steps and 0 < self.updates < self.warmup_steps:
            next(self.parameters()).mul_((self.updates + 1) / self.updates)
            self._project()

    def _project(self) -> None:
        """Project the parameters into the ball after `epsilon` has changed, or they were loaded."""

    def _perturb(self, x: Tensor, points: Tensor, clip: bool = True) -> Tensor:
        # The user's autocast is meant for the network: in half precision the offset could leave its ball.
        with torch.autocast(x.device.type, enabled=False):
            image = self.space.to_image(x)
            dtype = torch.promote_types(image.dtype, points.dtype)
            if not self.is_in_pixels:
                dtype = torch.promote_types(dtype, torch.float32)  # there are no transforms in half precision
            points = points if self._unit == 1 else self._unit * points
            image = self.prior.apply(image.to(dtype), points.to(dtype))
            return self.space.to_input(self.space.clip(image) if clip else image).to(x.dtype)

    def _loss_weights(self, domain: Tensor, dtype: torch.dtype, is_shared: bool) -> Tensor:
        """Return one weight per sample such that the weighted sum of losses adds up each domain's mean (or sum).

        Args:
            is_shared: The mean is that over the samples of all ranks, of which these are a part.
        """
        if self.reduction == "sum":
            return torch.ones_like(domain, dtype=dtype)
        counts = F.one_hot(domain, self.num_domains).sum(0)
        if is_shared:
            (counts,) = sum_over_ranks([counts])
        return counts.to(dtype).reciprocal()[domain]

    def trust_inputs_(self) -> "Perturbation":
        """Do not compare the first inputs with the bounds, for which an accelerator would be waited for."""
        self._remaining_checks = 0
        return self

    def _check_batch(self, x: Tensor, domain: Tensor | int | None) -> Tensor:
        """Check both arguments, and return one domain index per sample."""
        check_inputs(x, self.shape)
        check_device(x, itertools.chain(self.parameters(), self.buffers()))
        indices = expand_domain(domain, len(x), self.num_domains, x.device)
        if self._remaining_checks and not torch.compiler.is_compiling():
            self._remaining_checks -= 1
            self._warn_of_clipping(x.detach())
        return indices

    def _warn_of_clipping(self, x: Tensor) -> None:
        """Warn once of inputs that the bounds change, which would ruin every batch."""
        image = self.space.to_image(x)
        # More than rounding, also in half precision.
        if x.numel() and (self.space.clip(image) - image).abs().amax() > 0.01:
            self._remaining_checks = 0
            is_number = isinstance(self.space.low, float)
            bounds = f"[{self.space.low:g}, {self.space.high:g}]" if is_number else "its bounds"
            warnings.warn(
                f"x has values from {image.amin():g} to {image.amax():g}; those outside {bounds} are clipped. Pass "
                "images in [0, 1] (such as x / 255), the mean= and std= that they were normalized with, or the bounds= "
                "of their values",
                stacklevel=5,
            )

    def _require_kept(self, use: str) -> None:
        if not self.is_kept:
            raise RuntimeError(
                f"{use} needs a perturbation that is kept between batches, but this one is recomputed for every "
                "sample; use attack(x, domain, loss_fn)"
            )


# In all functions below, the first `batch_dims` dimensions index points; one norm is taken over all remaining ones.


def compute_norm(points: Tensor, norm: Norm, batch_dims: int = 1) -> Tensor:
    """Return the norm of each point, shaped to broadcast against `points`."""
    flat = points.flatten(batch_dims) if points.ndim > batch_dims else points.unsqueeze(-1)
    order = 2 if norm == "l2" else torch.inf
    norms: Tensor = torch.linalg.vector_norm(flat, order, dim=-1)
    return norms.reshape(*points.shape[:batch_dims], *[1] * (points.ndim - batch_dims))


def scale_into_ball(points: Tensor, epsilon: float, norm: Norm, batch_dims: int = 1) -> Tensor:
    """Scale points outside the ball onto its surface, which preserves their rank; differentiable."""
    # A floor under the divisor, not a branch: points inside the ball (or at zero) get factor 1 and a finite gradient.
    floor = max(epsilon, torch.finfo(points.dtype).tiny)
    return points * (epsilon / compute_norm(points, norm, batch_dims).clamp(min=floor))


def project(points: Tensor, epsilon: float, norm: Norm, batch_dims: int = 1) -> Tensor:
    """Return the nearest point of the ball of radius `epsilon` for each point."""
    return scale_into_ball(points, epsilon, norm, batch_dims) if norm == "l2" else points.clamp(-epsilon, epsilon)


def is_outside(points: Tensor, epsilon: float, norm: Norm, batch_dims: int = 1) -> Tensor:
    """Return whether each point is outside the ball by more than rounding, shaped to broadcast against `points`."""
    slack = max(1e-5, 4 * torch.finfo(points.dtype).eps)
    return compute_norm(points, norm, batch_dims) > epsilon * (1 + slack)


def project_outliers(points: Tensor, epsilon: float, norm: Norm, batch_dims: int = 1) -> Tensor:
    """Project the points outside the ball; those that were projected before stay the same to the bit."""
    return torch.where(
        is_outside(points, epsilon, norm, batch_dims), project(points, epsilon, norm, batch_dims), points
    )


def steepest_ascent(norm: Norm) -> Ascent:
    """Return the step that raises a loss the most of all steps with this norm, to first order."""
    return "sign" if norm == "linf" else "normalized"


def compute_direction(gradient: Tensor, ascent: Ascent, norm: Norm, batch_dims: int = 1) -> Tensor:
    """Return the ascent direction: the gradient, its signs, or the gradient scaled to norm 1.

    The direction of a zero or non-finite gradient is zero, so its point does not move.
    """
    largest = compute_norm(gradient, "linf", batch_dims)
    is_usable = torch.isfinite(largest) & (largest > 0)
    if ascent != "normalized":
        usable_gradient = torch.where(is_usable, gradient, 0.0)
        return usable_gradient if ascent == "gradient" else usable_gradient.sign()
    # Dividing by the largest entry first keeps tiny gradients from underflowing when they are squared.
    scaled = torch.where(is_usable, gradient / torch.where(is_usable, largest, 1.0), 0.0)
    return scaled / compute_norm(scaled, norm, batch_dims).clamp(min=1.0)


def step_and_project(points: Tensor, step: Tensor, epsilon: float, norm: Norm, batch_dims: int = 1) -> Tensor:
    """Add the step and project. Points with a zero step stay exactly where they are, even outside the ball."""
    has_step = (step != 0).reshape(*step.shape[:batch_dims], -1).any(-1)
    has_step = has_step.reshape(*has_step.shape, *[1] * (points.ndim - batch_dims))
    return torch.where(has_step, project(points + step, epsilon, norm, batch_dims), points)


def gather_per_sample(deltas: Tensor, domain: Tensor) -> Tensor:
    """Return the row of each sample's domain, (b, *shape), from one row per domain, (num_domains, *shape)."""
    # Flat rows, because the backward pass of indexing several dimensions is many times slower.
    return deltas.flatten(1).index_select(0, domain).reshape(-1, *deltas.shape[1:])


def draw_noise(
    kind: Literal["normal", "uniform"], shape: tuple[int, ...], *, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Draw N(0, 1) or U(0, 1) values with the dtype and device of `like`, on the generator's own device."""
    device = generator.device if generator is not None else like.device
    sample = torch.randn if kind == "normal" else torch.rand
    return send_to(like.device, sample(shape, generator=generator, dtype=like.dtype, device=device))


def draw_in_ball(
    shape: tuple[int, ...], epsilon: float, norm: Norm, *, like: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """Draw one point uniformly from the ball for each entry of the first dimension of `shape`."""
    if norm == "linf":
        return (2 * draw_noise("uniform", shape, like=like, generator=generator) - 1) * epsilon
    direction = compute_direction(draw_noise("normal", shape, like=like, generator=generator), "normalized", "l2")
    volume = draw_noise("uniform", (shape[0], *[1] * (len(shape) - 1)), like=like, generator=generator)
    radius = volume ** (1 / math.prod(shape[1:]))
    return direction * radius * epsilon


def draw_gaussian_start(
    shape: tuple[int, ...],
    start: GaussianStart,
    epsilon: float,
    norm: Norm,
    *,
    batch_dims: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Draw the start of perturbations that are kept: Gaussian noise, projected or as in the released code."""
    check_choice("start", start, GaussianStart)
    noise = draw_noise("normal", shape, like=torch.empty(0), generator=generator)
    if start == "unprojected":
        return noise * 2 * epsilon - epsilon
    return project(noise, epsilon, norm, batch_dims)


class ImageSpace(nn.Module):
    """The map between (possibly normalized) inputs and images, and the range that images are clipped to.

    Args:
        bounds: Range of the images, two numbers or two tensors that broadcast to one image. None disables clipping.
        statistics: Mean and standard deviation that the inputs were normalized with, two tensors that broadcast to one
            image. None if the inputs are images.
    """

    low: Bound
    high: Bound
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        bounds: tuple[float, float] | tuple[Tensor, Tensor] | None = (0.0, 1.0),
        statistics: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.is_bounded = bounds is not None
        # Whether gradients pass through clipping: those at the clipped image then reach every value, as in PGD.
        self.passes_gradients = False
        self.is_normalized = statistics is not None
        # Numbers stay numbers, which are much faster to clip to.
        for name, bound in zip(("low", "high"), bounds or (), strict=False):
            if isinstance(bound, Tensor):
                self.register_buffer(name, bound, persistent=False)
            else:
                setattr(self, name, bound)
        for name, values in zip(("mean", "std"), statistics or (), strict=False):
            self.register_buffer(name, values, persistent=False)

    def to_image(self, x: Tensor) -> Tensor:
        return x * self.std + self.mean if self.is_normalized else x

    def clip(self, image: Tensor) -> Tensor:
        if not self.is_bounded:
            return image
        clipped: Tensor = torch.clamp(image, self.low, self.high)  # type: ignore[arg-type]
        # A value at a bound has no gradient in torch, although it can move inwards.
        return clipped.detach() + (image - image.detach()) if self.passes_gradients else clipped

    def to_input(self, image: Tensor) -> Tensor:
        return (image - self.mean) / self.std if self.is_normalized else image


def as_leaf(parameter: Tensor) -> Tensor:
    """Return a leaf of the graph that shares the parameter's memory."""
    return parameter.detach().requires_grad_()


def refuse_inference_mode(subject: str) -> None:
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            f"{subject} needs gradients, which torch.inference_mode() disables for good; use torch.no_grad() "
            "instead (in Lightning: Trainer(inference_mode=False))"
        )


def parse_extra_state(state: Any, generator: torch.Generator | None) -> tuple[float, int, Tensor | None]:
    """Return the radius, the number of updates and the generator's state of what `get_extra_state` returned."""
    if not isinstance(state, Mapping) or "epsilon" not in state:
        raise ValueError(f"the state_dict of a perturbation must have its epsilon in _extra_state, got {state!r}")
    epsilon = parse_radius(state["epsilon"], shape=())  # a saved radius has no unit
    updates = check_integer("updates", state.get("updates", 0), minimum=0)  # absent from checkpoints without a warm-up
    generator_state = state.get("generator")
    if generator is None or generator_state is None:
        return epsilon, updates, None
    try:
        generator_state = generator_state.cpu()
        torch.Generator(generator.device).set_state(generator_state)
    except (AttributeError, TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"generator in the state_dict must be the state of a torch.Generator: {reason}") from None
    return epsilon, updates, generator_state
