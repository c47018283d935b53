"""Checks of what users pass: errors name the argument, what it must be, and what it is. None waits for a device."""

import math
import operator
import os
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from domainwise.perturbations.device import send_to

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INDICES = (torch.int64, torch.int32)


def check_choice(name: str, value: Any, choices: Any) -> None:
    if not isinstance(value, str) or value not in get_args(choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, get_args(choices)))}, got {value!r}")


def check_integer(name: str, value: Any, *, minimum: int) -> int:
    number = to_integer(value)
    if number is None:
        raise ValueError(f"{name} must be an integer of at least {minimum}, got {value!r}")
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")
    return number


def check_nonnegative(name: str, value: Any) -> float:
    number = to_number(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")
    return number


def check_positive(name: str, value: Any) -> float:
    number = to_number(value)
    if not number > 0:
        raise ValueError(f"{name} must be positive, got {value!r}")
    return number


def to_number(value: Any) -> float:
    """Return a real number as a float, and NaN, which passes no check, for anything else."""
    try:
        return math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # RuntimeError: a tensor of several values
        return math.nan


def to_integer(value: Any) -> int | None:
    """Return an integer of any library as an int, and None for anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def check_shape(shape: Any) -> tuple[int, ...]:
    sizes = tuple(to_integer(size) or 0 for size in _to_list(shape))
    if not sizes or min(sizes) < 1:
        raise ValueError(
            f"shape must be that of one input, positive integers such as (channels, height, width), got {shape!r}"
        )
    return sizes


def check_memory(name: str, *sizes: int) -> None:
    """Raise an error if a tensor of these sizes, its gradient and its next value do not fit into memory."""
    required, available = 3 * 4 * math.prod(sizes), measure_memory()
    if required > available:
        raise ValueError(
            f"{name} is too large: {' x '.join(map(str, sizes))} numbers need {required / 1e9:,.0f} GB of memory, and "
            f"there are {available / 1e9:,.0f} GB"
        )


def measure_memory() -> int:
    """Return the memory of this machine in bytes."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return 2**40


def check_bounds(bounds: Any, shape: tuple[int, ...]) -> tuple[float, float] | tuple[Tensor, Tensor] | None:
    """Return the range of an image, as two numbers or two tensors that broadcast to `shape`."""
    if bounds is None:
        return None
    expected = f"bounds must be a pair (low, high) with low < high, numbers or tensors that broadcast to {shape}"
    parts = _to_list(bounds)
    if len(parts) != 2:
        raise ValueError(f"{expected}, got {bounds!r}")
    tensors = [part for part in parts if isinstance(part, Tensor) and part.ndim > 0]
    if not tensors:
        low, high = map(to_number, parts)
        if not low < high:
            raise ValueError(f"{expected}, got {bounds!r}")
        return low, high
    dtype = torch.get_default_dtype()
    for tensor in tensors:
        if not _broadcasts_to(tensor, shape) or tensor.is_complex():
            raise ValueError(f"{expected}, got a tensor of shape {tuple(tensor.shape)}, {tensor.dtype}")
    lows, highs = (
        part.to(dtype) if isinstance(part, Tensor) else torch.tensor(to_number(part), dtype=dtype) for part in parts
    )
    if not (lows < highs.to(lows.device)).all():
        raise ValueError(f"{expected}, got tensors for which that is not the case")
    return lows, highs


def check_statistics(mean: Any, std: Any, shape: tuple[int, ...]) -> tuple[Tensor, Tensor] | None:
    """Return the mean and standard deviation per channel, shaped to broadcast against images of `shape`."""
    if (mean is None) != (std is None):
        raise ValueError("pass mean and std together, or neither")
    if mean is None:
        return None
    tensors = []
    for name, values, is_valid in (("mean", mean, math.isfinite), ("std", std, lambda number: 0 < number < math.inf)):
        # As a tensor, statistics often have dimensions to broadcast with.
        numbers = [to_number(value) for value in _to_list(values.flatten() if isinstance(values, Tensor) else values)]
        if len(numbers) not in (1, shape[0]) or not all(map(is_valid, numbers)):
            kind = "positive, finite number" if name == "std" else "finite number"
            raise ValueError(
                f"{name} must be one {kind} per channel, {shape[0]} for inputs of shape {shape}, got {values!r}"
            )
        tensors.append(torch.tensor(numbers, dtype=torch.get_default_dtype()).reshape(-1, *[1] * (len(shape) - 1)))
    return tensors[0], tensors[1]


def check_generator(generator: Any) -> None:
    if not (generator is None or isinstance(generator, torch.Generator)):
        raise TypeError(
            f"generator must be a torch.Generator or None, got {generator!r}; for a seed, use "
            "torch.Generator().manual_seed(seed)"
        )


def check_inputs(x: Any, shape: tuple[int, ...]) -> None:
    expected = f"x must be a float tensor of shape {('b', *shape)}".replace("'", "")
    if not isinstance(x, Tensor):
        raise TypeError(f"{expected}, got {type(x).__name__}; torch.as_tensor or torch.stack make one")
    if x.dtype not in _FLOATS:
        raise TypeError(f"{expected}, got {x.dtype}; convert images of integers from 0 to 255 with x.float() / 255")
    if x.layout != torch.strided:
        raise TypeError(f"{expected}, got {x.layout}; make it dense with x.to_dense()")
    if x.ndim == 0 or tuple(x.shape[1:]) != shape:
        hint = "; add the dimension of the batch with x.unsqueeze(0)" if tuple(x.shape) == shape else ""
        raise ValueError(f"{expected}, got {tuple(x.shape)}{hint}")


def check_device(x: Tensor, tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        if tensor.device != x.device:
            raise ValueError(
                f"x must be on the device of the perturbation, {tensor.device}, got {x.device}; move it with "
                "perturbation.to(x.device)"
            )


def expand_domain(domain: Any, count: int, num_domains: int, device: torch.device) -> Tensor:
    """Return the domain index of each of `count` samples, on this device."""
    expected = f"domain must have one integer per sample, shape ({count},)"
    if domain is None:
        if num_domains > 1:
            raise ValueError(f"domain=None is ambiguous with {num_domains} domains; {expected}")
        domain = 0
    if isinstance(domain, Tensor):
        if domain.shape != (count,) or domain.dtype not in _INDICES:
            raise ValueError(f"{expected}, got {tuple(domain.shape)} {domain.dtype}; use dtype int64")
        # On an accelerator this check would wait for the device at every step; indexing fails there anyway. Compiled
        # code cannot depend on values.
        if domain.device.type == "cpu" and domain.numel() and not torch.compiler.is_compiling():
            low, high = (int(value) for value in domain.aminmax())
            _check_range(low, high, num_domains)
        return send_to(device, domain, torch.int64)
    index = to_integer(domain)
    if index is None:
        raise TypeError(
            f"{expected}, or be one integer for all samples, got {type(domain).__name__}; make a tensor of indices "
            "with torch.tensor([0, 1, ...])"
        )
    _check_range(index, index, num_domains)
    return torch.full((count,), index, device=device)


def check_losses(losses: Any, count: int) -> None:
    """Raise an error unless these are the losses of `count` samples, with a graph to differentiate if one is made."""
    expected = f"loss_fn must return one loss per sample, shape ({count},)"
    if not isinstance(losses, Tensor):
        raise TypeError(f"{expected}, got {type(losses).__name__}; compute it from the model's logits")
    if losses.shape != (count,):
        raise ValueError(f'{expected}, got {tuple(losses.shape)}; use reduction="none"')
    if losses.dtype not in _FLOATS:
        raise ValueError(f"{expected}, as floats, got {losses.dtype}")
    if torch.is_grad_enabled() and not losses.requires_grad:
        raise ValueError(
            f"{expected}, with a gradient to its argument, got one without; remove detach(), no_grad() and operations "
            "without a gradient, such as argmax(), from it"
        )


def check_gradients(gradients: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    present = tuple(gradient for gradient in gradients if gradient is not None)
    if len(present) < len(gradients):
        raise ValueError(
            "loss_fn must compute the losses from its argument, the perturbed batch; they do not depend on it. Write "
            'lambda x: F.cross_entropy(model(x), y, reduction="none")'
        )
    return present


def check_gradient_scale(scale: Any, num_domains: int) -> None:
    expected = f"gradient_scale must be a tensor with one factor per domain, shape ({num_domains},)"
    if not isinstance(scale, Tensor):
        raise TypeError(f"{expected}, got {type(scale).__name__}")
    if scale.shape != (num_domains,) or scale.is_complex() or scale.dtype == torch.bool:
        raise ValueError(f"{expected}, got {tuple(scale.shape)} {scale.dtype}")


def check_finite(name: str, tensor: Tensor) -> None:
    if tensor.is_floating_point() and not tensor.isfinite().all():
        raise ValueError(f"{name} in the state_dict must have finite values, got NaN or infinity")


def _check_range(low: int, high: int, num_domains: int) -> None:
    if low < 0 or high >= num_domains:
        raise ValueError(f"domain must be between 0 and {num_domains - 1}, got {low} to {high}")


def _to_list(values: Any) -> list[Any]:
    """Return the values of a sequence, in order, and none of anything else."""
    try:
        return [] if isinstance(values, (str, bytes, dict, set)) else list(values)
    except TypeError:
        return []


def _broadcasts_to(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    try:
        return tuple(torch.broadcast_shapes(tensor.shape, shape)) == shape
    except RuntimeError:
        return False
