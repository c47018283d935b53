"""Strong augmentation of whole batches on the device: random crops and flips, then one random operation per image.

TrivialAugment (Müller & Hutter 2021, "TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation", Algorithm 1)
with its wide space: "we sample an augmentation a from A uniformly, and a strength m from {0, ..., 30} uniformly, and
apply a(x, m)". Operations and strengths are those of torchvision's `TrivialAugmentWide`, with bilinear interpolation
and black outside of the image. The crops and flips are those of `augment_batch`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.data.augmentation import compute_gray, crop_images, draw_windows, mean_gray
from domainwise.perturbations.device import send_to

OPERATIONS = (
    *("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast"),
    *("sharpness", "posterize", "solarize", "autocontrast", "equalize"),
)
_MAX_LEVEL = 30
_SHEAR, _TRANSLATE, _ROTATE, _BLEND = (most / _MAX_LEVEL for most in (0.99, 32, math.radians(135), 0.99))


@torch.no_grad()
def augment_strongly(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Augment images (b, C, H, W), uint8 or float; returns floats in [0, 1], channels-last."""
    view = crop_images(x, *draw_windows(x, generator))
    # Drawn on the CPU, so that a seed gives the same views on every device.
    operation = torch.randint(len(OPERATIONS), (len(x),), generator=generator)
    level = torch.randint(_MAX_LEVEL + 1, (len(x),), generator=generator)
    sign = 2 * torch.randint(2, (len(x),), generator=generator) - 1
    return apply_operations(view, operation, sign * level).contiguous(memory_format=torch.channels_last)


def apply_operations(x: Tensor, operation: Tensor, level: Tensor) -> Tensor:
    """Apply one operation to each image, in place.

    Args:
        x: floats (b, C, H, W) in [0, 1], contiguous.
        operation: indices in `OPERATIONS`, (b,), on the CPU.
        level: strengths from -30 to 30, (b,), on the CPU; operations without a direction ignore the sign.
    """
    members = ((operation >= 1) & (operation <= 5)).nonzero().flatten()
    if len(members):
        matrices = _build_matrices(operation[members], level[members].double(), *x.shape[2:])
        members = send_to(x.device, members)
        x[members] = _move(x[members], send_to(x.device, matrices.to(x.dtype)))
    for name, change in _PHOTOMETRIC.items():
        members = (operation == OPERATIONS.index(name)).nonzero().flatten()
        if len(members):
            own_level = send_to(x.device, level[members].to(x.dtype)[:, None, None, None])
            members = send_to(x.device, members)
            x[members] = change(x[members], own_level).clamp_(0, 1)
    return x


def _move(x: Tensor, matrices: Tensor) -> Tensor:
    grid = F.affine_grid(matrices, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


def _build_matrices(operation: Tensor, level: Tensor, height: int, width: int) -> Tensor:
    """Return the matrices (b, 2, 3) that map places in the view to places in the image, for `affine_grid`."""
    shear_x, shear_y, translate_x, translate_y, rotate = (operation == index for index in range(1, 6))
    # In pixels from the centre. A shear leaves the upper left corner where it is.
    angle, shift = _ROTATE * level * rotate, (_TRANSLATE * level).trunc()
    across, down = _SHEAR * level * shear_x, _SHEAR * level * shear_y
    top = [angle.cos(), across - angle.sin(), across * height / 2 - shift * translate_x]
    bottom = [down + angle.sin(), angle.cos(), down * width / 2 - shift * translate_y]
    # To coordinates in which -1 and 1 are the outer edges of the image.
    scale = torch.tensor([[1, height / width, 2 / width], [width / height, 1, 2 / height]], dtype=torch.float64)
    return torch.stack([torch.stack(top, 1), torch.stack(bottom, 1)], 1) * scale


def _blend(x: Tensor, other: Tensor | float, level: Tensor) -> Tensor:
    return other + (1 + _BLEND * level) * (x - other)


def _change_color(x: Tensor, level: Tensor) -> Tensor:
    return _blend(x, compute_gray(x), level) if x.shape[1] == 3 else x


def _sharpen(x: Tensor, level: Tensor) -> Tensor:
    """Blend with the image smoothed by [[1, 1, 1], [1, 5, 1], [1, 1, 1]] / 13, whose border stays as it is."""
    if min(x.shape[2:]) < 3:
        return x
    smooth = x.clone()
    smooth[:, :, 1:-1, 1:-1].mul_(4 / 13).add_(F.avg_pool2d(x, 3, stride=1), alpha=9 / 13)
    return _blend(x, smooth, level)


def _posterize(x: Tensor, level: Tensor) -> Tensor:
    """Keep 8 to 2 bits."""
    step = 2 ** (level.abs() / 5).round()
    return (_round_to_bytes(x) / step).floor_() * step / 255


def _solarize(x: Tensor, level: Tensor) -> Tensor:
    """Invert the values from a threshold on."""
    return torch.where(_round_to_bytes(x) >= 255 - 8.5 * level.abs(), 1 - x, x)


def _stretch_contrast(x: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel to the range from 0 to 1."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low), x)


def _equalize(x: Tensor, _: Tensor) -> Tensor:
    """Make the histogram of each channel as even as possible."""
    values = _round_to_bytes(x).flatten(2).long()
    counts = torch.zeros(*x.shape[:2], 256, dtype=torch.int64, device=x.device)
    counts.scatter_add_(2, values, torch.ones_like(values))
    totals = counts.cumsum(2)
    # All pixels below the largest value, spread over 255 steps.
    brightest = counts.gather(2, values.amax(2, keepdim=True))
    step = (totals[:, :, -1:] - brightest) // 255
    table = (totals - counts + step // 2) // step.clamp(min=1)
    table = torch.where(step > 0, table.clamp_(max=255), torch.arange(256, device=x.device))
    return (table.gather(2, values).to(x.dtype) / 255).view_as(x)


def _round_to_bytes(x: Tensor) -> Tensor:
    return (255 * x).round_()


_PHOTOMETRIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": lambda x, level: _blend(x, 0.0, level),
    "color": _change_color,
    "contrast": lambda x, level: _blend(x, mean_gray(x), level),
    "sharpness": _sharpen,
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": _stretch_contrast,
    "equalize": _equalize,
}
