"""APGD: projected gradient ascent that adapts its step size (Croce & Hein 2020, arXiv 2003.01690, Algorithm 1)."""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.perturbations.base import Norm, compute_direction, draw_noise, project, steepest_ascent

# Maps logits (b, classes), labels (b,) and target classes (b,) to one loss per image, (b,).
AttackLoss = Callable[[Tensor, Tensor, Tensor], Tensor]

_MOMENTUM = 0.75
# The step size is halved where fewer steps than this share of them increased the loss.
_INCREASING_SHARE = 0.75
# A floor under the divisors of the DLR losses.
_TINY = 1e-12


def cross_entropy_loss(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none")


def run_apgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    epsilon: float,
    norm: Norm = "linf",
    steps: int = 100,
    loss: AttackLoss = cross_entropy_loss,
    target: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return a perturbed batch: for each image the first misclassified point, or else the one of the highest loss.

    Args:
        model: Maps images in [0, 1] to logits, in eval mode.
        x: Images, (b, C, H, W).
        y: Their labels, (b,).
        epsilon: Radius of the ball around each image.
        norm: `"linf"`, with steps along the signs of the gradient, or `"l2"`, along the gradient.
        steps: Number of steps. The first has the length 2 epsilon.
        loss: The loss to ascend: cross-entropy, `dlr_loss` or `targeted_dlr_loss`.
        target: Target classes of a targeted loss, (b,).
        generator: Source of the random start, on the surface of the ball.
    """
    ascent = steepest_ascent(norm)
    x = x.detach()

    def project_near(image: Tensor, point: Tensor) -> Tensor:
        return (image + project(point - image, epsilon, norm)).clamp(0, 1)

    noise = draw_noise("normal" if norm == "l2" else "uniform", tuple(x.shape), like=x, generator=generator)
    noise = noise if norm == "l2" else 2 * noise - 1
    start = project_near(x, x + epsilon * compute_direction(noise, "normalized", norm))
    result = start.clone()
    state = _Ascent.begin(x, y, y if target is None else target, start, 2 * epsilon)
    state.evaluate(model, loss)
    last_checkpoint, checkpoints = 0, find_checkpoints(steps)
    for step in range(steps):
        # Misclassified images are done. The ascent of the others does not depend on them.
        state = state.drop_found(result)
        if not len(state.index):
            break
        if step in checkpoints:
            state.halve_step(step - last_checkpoint)
            last_checkpoint = step
        direction = compute_direction(state.gradient, ascent, norm)
        point = project_near(state.image, state.point + state.step_size * direction)
        if step:  # the first step has no momentum
            inertia = state.point - state.previous
            point = state.point + _MOMENTUM * (point - state.point) + (1 - _MOMENTUM) * inertia
            point = project_near(state.image, point)
        state.previous, state.point = state.point, point
        state.evaluate(model, loss)
    state = state.drop_found(result)
    result[state.index] = state.best
    return result


def find_checkpoints(steps: int) -> list[int]:
    """Return the steps at which the step size may be halved: at shares p of all steps, rounded up.

    The shares are 0.22, then p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06).
    """
    # In percent, as integers: 100 * 0.41 rounded up would be 42.
    shares = [0, 22]
    while shares[-1] <= 100:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 3, 6))
    return sorted({-(-share * steps // 100) for share in shares[1:-1]})


def dlr_loss(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """Return the difference of logits ratio of at least 3 classes: positive where misclassified.

    It is invariant to shifts and scales of the logits, so a model cannot hide its gradients by large ones.
    """
    first, second, third = logits.topk(3, dim=1).values.unbind(1)
    own = _pick(logits, y)
    other = torch.where(logits.argmax(1) == y, second, first)
    return (other - own) / (first - third + _TINY)


def targeted_dlr_loss(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """Return the difference of logits ratio towards a target class, of at least 4 classes."""
    first, _, third, fourth = logits.topk(4, dim=1).values.unbind(1)
    return (_pick(logits, target) - _pick(logits, y)) / (first - (third + fourth) / 2 + _TINY)


def _pick(logits: Tensor, classes: Tensor) -> Tensor:
    return logits.gather(1, classes[:, None]).squeeze(1)


@dataclass
class _Ascent:
    """The images that are not misclassified yet. All fields have one row per image.

    Args:
        index: position in the batch.
        point, previous: the last two points of the ascent.
        best, best_loss, best_gradient: the point of the highest loss so far.
        step_size: shaped to broadcast against images.
        increases: steps since the last checkpoint that increased the loss.
        was_halved: whether the last checkpoint halved the step size.
        checked_loss: the highest loss at the last checkpoint.
        is_found: whether `point` is misclassified.
    """

    index: Tensor
    image: Tensor
    y: Tensor
    target: Tensor
    point: Tensor
    previous: Tensor
    loss: Tensor
    gradient: Tensor
    best: Tensor
    best_loss: Tensor
    best_gradient: Tensor
    step_size: Tensor
    increases: Tensor
    was_halved: Tensor
    checked_loss: Tensor
    is_found: Tensor

    @classmethod
    def begin(cls, x: Tensor, y: Tensor, target: Tensor, start: Tensor, step_size: float) -> "_Ascent":
        lowest = torch.full((len(x),), -torch.inf, dtype=x.dtype, device=x.device)
        return cls(
            index=torch.arange(len(x), device=x.device),
            image=x,
            y=y,
            target=target,
            point=start,
            previous=start,
            loss=lowest,
            gradient=torch.zeros_like(x),
            best=start,
            best_loss=lowest,
            best_gradient=torch.zeros_like(x),
            step_size=torch.full((len(x), *[1] * (x.ndim - 1)), step_size, dtype=x.dtype, device=x.device),
            # The start itself is no step.
            increases=torch.full_like(y, -1),
            was_halved=torch.zeros_like(y, dtype=torch.bool),
            checked_loss=lowest,
            is_found=torch.zeros_like(y, dtype=torch.bool),
        )

    def drop_found(self, result: Tensor) -> "_Ascent":
        """Write the misclassified points into the result, and return the state of the other images."""
        result[self.index[self.is_found]] = self.point[self.is_found]
        return _Ascent(**{field.name: getattr(self, field.name)[~self.is_found] for field in fields(self)})

    def evaluate(self, model: nn.Module, loss: AttackLoss) -> None:
        """Compute loss and gradient at the point, and remember the best one."""
        point = self.point.detach().requires_grad_()
        with torch.enable_grad():
            logits = model(point)
            losses = loss(logits, self.y, self.target)
            (self.gradient,) = torch.autograd.grad(losses.sum(), point)
        losses = losses.detach()
        self.is_found = logits.detach().argmax(1) != self.y
        self.increases = self.increases + (losses > self.loss)
        is_better, self.loss = losses > self.best_loss, losses
        rows = _expand(is_better, point)
        self.best = torch.where(rows, self.point, self.best)
        self.best_gradient = torch.where(rows, self.gradient, self.best_gradient)
        self.best_loss = torch.where(is_better, losses, self.best_loss)

    def halve_step(self, steps: int) -> None:
        """Where the ascent stalls, halve the step size and go on from the best point.

        Args:
            steps: number of steps since the last checkpoint.
        """
        # As in the paper; the released code also halves at exactly this share.
        oscillates = self.increases < _INCREASING_SHARE * steps
        # Without an improvement since the last checkpoint, which left the step size as it was.
        stagnates = ~self.was_halved & (self.best_loss <= self.checked_loss)
        self.was_halved = oscillates | stagnates
        self.checked_loss = self.best_loss
        self.increases = torch.zeros_like(self.increases)
        rows = _expand(self.was_halved, self.point)
        self.step_size = torch.where(_expand(self.was_halved, self.step_size), self.step_size / 2, self.step_size)
        self.point = torch.where(rows, self.best, self.point)
        self.gradient = torch.where(rows, self.best_gradient, self.gradient)


def _expand(rows: Tensor, like: Tensor) -> Tensor:
    """Shape one value per image to broadcast against images."""
    return rows.reshape(-1, *[1] * (like.ndim - 1))
