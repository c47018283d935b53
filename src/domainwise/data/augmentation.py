"""Another view of each image of a batch: cropped, mirrored and recoloured, every image in its own way.

What the field does to training images: a random resized crop (scale .7 to 1), a horizontal flip, colour jitter of .3 in
brightness, contrast, saturation and hue, and one image in ten in gray. Images of other than three channels keep
their colours, but not their brightness and contrast.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

_SCALE, _RATIO = (0.7, 1.0), (3 / 4, 4 / 3)
_JITTER = 0.3
_GRAYSCALE = 0.1
_LUMINANCE = (0.299, 0.587, 0.114)


def augmented(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Random views of images in [0, 1], (b, C, H, W)."""
    if x.ndim != 4:
        raise ValueError(f"augmentation is for images (b, C, H, W), not for inputs of shape {tuple(x.shape)}")
    # Drawn on the CPU, so that a seed means the same on every device.
    draw = torch.rand(10, len(x), 1, 1, 1, generator=generator).to(x)
    x = _cropped(x, draw[:5])
    x = _blended(x, torch.zeros_like(x), draw[5])
    x = _blended(x, _gray(x).mean((1, 2, 3), keepdim=True), draw[6])
    if x.shape[1] == 3:
        x = _blended(x, _gray(x), draw[7])
        x = _hue_turned(x, _JITTER * (2 * draw[8] - 1))
        x = torch.where(draw[9] < _GRAYSCALE, _gray(x), x)
    return x


def _cropped(x: Tensor, draw: Tensor) -> Tensor:
    """A window of each image, perhaps mirrored, stretched to the whole."""
    area, ratio, across, down, flip = draw.flatten(1)
    area = _SCALE[0] + (_SCALE[1] - _SCALE[0]) * area
    ratio = (math.log(_RATIO[0]) + (math.log(_RATIO[1]) - math.log(_RATIO[0])) * ratio).exp()
    # A window that the ratio would push over the edge is cut off there.
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    mirrored = torch.where(flip < 0.5, -1.0, 1.0).to(x.dtype)
    zero = torch.zeros_like(width)
    rows = [width * mirrored, zero, (1 - width) * (2 * across - 1), zero, height, (1 - height) * (2 * down - 1)]
    grid = F.affine_grid(torch.stack(rows, dim=1).reshape(-1, 2, 3), list(x.shape), align_corners=False)
    view = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    return view.contiguous(memory_format=torch.channels_last).clamp(0, 1)


def _blended(x: Tensor, other: Tensor, draw: Tensor) -> Tensor:
    """Between `other` and the image, or as far beyond it: by a factor of 1 - .3 to 1 + .3."""
    factor = 1 + _JITTER * (2 * draw - 1)
    return (factor * x + (1 - factor) * other).clamp(0, 1)


def _gray(x: Tensor) -> Tensor:
    if x.shape[1] != 3:
        return x
    weights = x.new_tensor(_LUMINANCE).reshape(1, 3, 1, 1)
    return (x * weights).sum(1, keepdim=True).expand_as(x)


def _hue_turned(x: Tensor, turn: Tensor) -> Tensor:
    """The hue moved along the colour circle by `turn` of it, (b, 1, 1, 1); value and saturation stay."""
    value, low = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    chroma = value - low
    red, green, blue = x.split(1, dim=1)
    safe = chroma.clamp(min=1e-12)
    sixth = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixth = sixth + 6 * turn
    # One formula for the three channels: where on the circle of sixths each falls from the value and comes back to it.
    places = (x.new_tensor((5.0, 3.0, 1.0)).reshape(1, 3, 1, 1) + sixth) % 6
    return value - chroma * torch.minimum(places, 4 - places).clamp(0, 1)
