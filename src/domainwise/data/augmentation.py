"""Augmentation of whole batches on the device: random crops, flips and colour changes, independent per image.

The transforms the field uses, each equal to torchvision's: a random resized crop (scale .7 to 1), a horizontal flip,
colour jitter of .3 in brightness, contrast, saturation and hue in random order, and grayscale for one image in ten. If
an image does not have three channels, only its brightness and contrast change.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.perturbations.device import send_to

_SCALE, _RATIO = (0.7, 1.0), (3 / 4, 4 / 3)
_TRIES = 10
_JITTER = 0.3
_GRAYSCALE = 0.1
_LUMINANCE = (0.299, 0.587, 0.114)
# Size limits of a group of images that share the order of their colour changes, in images and in values: small enough
# for intermediate results to stay in the CPU cache.
_GROUP, _GROUP_VALUES = 16, 650_000


def augment_batch(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Augment images (b, C, H, W), uint8 or float; returns floats in [0, 1], channels-last."""
    windows, is_mirrored = draw_windows(x, generator)
    count = len(x)
    dtype = torch.float32 if x.dtype == torch.uint8 else x.dtype
    jitter = torch.rand(5, count, 1, 1, 1, generator=generator).to(dtype)
    size = max(1, min(_GROUP, _GROUP_VALUES // max(1, x[:1].numel())))
    orders = torch.rand(math.ceil(count / size), 4, generator=generator).argsort(1).tolist()
    view = torch.empty_like(x, dtype=dtype, memory_format=torch.channels_last)
    for group, order in enumerate(orders):
        members = slice(group * size, (group + 1) * size)
        part = crop_images(x[members], windows[:, members], is_mirrored[members])
        view[members] = _jitter_colours(part, jitter[:, members], order)
    return view


def draw_windows(x: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Draw a crop per image: top, left, height and width in pixels, (4, b), and whether it is mirrored, (b,)."""
    if x.ndim != 4:
        raise ValueError(f"augmentation expects images (b, C, H, W), not inputs of shape {tuple(x.shape)}")
    # Drawn on the CPU, so that a seed gives the same views on every device.
    draw = torch.rand(2 * _TRIES + 3, len(x), generator=generator, dtype=torch.float64)
    return _choose_windows(draw, *x.shape[2:])


def crop_images(x: Tensor, windows: Tensor, is_mirrored: Tensor) -> Tensor:
    """Resize the window of each image to the full size and mirror it if asked to; returns contiguous floats."""
    crop = _crop_bytes if x.dtype == torch.uint8 and x.device.type == "cpu" else _crop
    return crop(x, windows, is_mirrored)


def _choose_windows(draw: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the windows and whether they are mirrored for numbers from 0 to 1, (23, b)."""
    area = (_SCALE[0] + (_SCALE[1] - _SCALE[0]) * draw[:_TRIES]) * height * width
    low, high = math.log(_RATIO[0]), math.log(_RATIO[1])
    ratio = (low + (high - low) * draw[_TRIES : 2 * _TRIES]).exp()
    wide, tall = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    # Use the first that fits into the image; if none does, the largest window of an allowed shape.
    fits = (wide >= 1) & (wide <= width) & (tall >= 1) & (tall <= height)
    first = fits.int().argmax(0, keepdim=True)
    largest = (min(height, round(width / _RATIO[0])), min(width, round(height * _RATIO[1])))
    has_fit = fits.any(0)
    tall = torch.where(has_fit, tall.gather(0, first)[0], largest[0])
    wide = torch.where(has_fit, wide.gather(0, first)[0], largest[1])
    down, across, mirror = draw[2 * _TRIES :]
    top = torch.where(has_fit, (down * (height - tall + 1)).floor(), ((height - tall) / 2).floor())
    left = torch.where(has_fit, (across * (width - wide + 1)).floor(), ((width - wide) / 2).floor())
    return torch.stack([top, left, tall, wide]), mirror < 0.5


def _crop(x: Tensor, windows: Tensor, is_mirrored: Tensor) -> Tensor:
    # Colour changes are fastest on contiguous channels.
    x = x.float().div_(255).contiguous() if x.dtype == torch.uint8 else x.contiguous()
    top, left, tall, wide = windows[:, :, None]
    height, width = x.shape[2:]
    rows = _source_coordinates(top, tall, height)
    columns = _source_coordinates(left, wide, width)
    columns = torch.where(is_mirrored[:, None], columns.flip(1), columns)
    # To grid_sample's coordinates, in which -1 and 1 are the outer edges of the image.
    places = (2 * rows + 1) / height - 1, (2 * columns + 1) / width - 1
    down, across = (send_to(x.device, each.to(x.dtype)) for each in places)
    grid = torch.stack(torch.broadcast_tensors(across[:, None, :], down[:, :, None]), dim=3)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def _crop_bytes(x: Tensor, windows: Tensor, is_mirrored: Tensor) -> Tensor:
    """Do the same as `_crop` for bytes on a CPU, whose kernel for resizing bytes is twice as fast as `grid_sample`."""
    cropped = torch.empty(x.shape)
    for index, (top, left, tall, wide) in enumerate(windows.T.int().tolist()):
        window = x[index : index + 1, :, top : top + tall, left : left + wide]
        window = window.flip(3) if is_mirrored[index] else window
        cropped[index] = F.interpolate(window, size=x.shape[2:], mode="bilinear", align_corners=False)[0]
    return cropped.div_(255)


def _source_coordinates(start: Tensor, length: Tensor, count: int) -> Tensor:
    """Return the coordinate that each of `count` pixels is read from, (b, count), clamped to the window."""
    place = (torch.arange(count, dtype=torch.float64) + 0.5) * length / count - 0.5
    return start + torch.minimum(place.clamp(min=0), length - 1)


def _jitter_colours(x: Tensor, draw: Tensor, order: list[int]) -> Tensor:
    """Change colours in the given order, in place: a pass over the images costs as much as the arithmetic."""
    factor = send_to(x.device, 1 + _JITTER * (2 * draw - 1))
    is_coloured = x.shape[1] == 3
    for change in order:
        if change == 0:
            x.mul_(factor[0])
        elif change == 1:
            torch.addcmul((1 - factor[1]) * mean_gray(x), x, factor[1], out=x)
        elif change == 2 and is_coloured:
            torch.addcmul((1 - factor[2]) * compute_gray(x), x, factor[2], out=x)
        elif change == 3 and is_coloured:
            _shift_hue(x, factor[3, :, 0] - 1)
        x.clamp_(0, 1)
    if is_coloured:
        for index in (draw[4].flatten() < _GRAYSCALE).nonzero().flatten().tolist():
            x[index] = compute_gray(x[index : index + 1])[0]
    return x


def compute_gray(x: Tensor) -> Tensor:
    """Return the luminance, (b, 1, H, W)."""
    red, green, blue = _LUMINANCE
    return (x[:, :1] * red).add_(x[:, 1:2], alpha=green).add_(x[:, 2:], alpha=blue)


def mean_gray(x: Tensor) -> Tensor:
    """Return the mean luminance per image, (b, 1, 1, 1), or the mean value unless there are three channels."""
    means = x.mean((2, 3), keepdim=True)
    return compute_gray(means) if x.shape[1] == 3 else means.mean(1, keepdim=True)


def _shift_hue(x: Tensor, turn: Tensor) -> None:
    """Shift the hue by `turn` of the colour circle, (b, 1, 1), in place; value and saturation stay the same."""
    red, green, blue = x.unbind(1)
    # Position on a circle of six sixths, starting at red. Whichever channels are the largest and the second, it is
    # (second - smallest) / chroma, added to or subtracted from a multiple of 2. `where` would take twice as long.
    more, less = torch.maximum(green, blue), torch.minimum(green, blue)
    is_bluer = (blue - green).sign_().clamp_(min=0)
    is_not_red = (more - red).sign_().clamp_(min=0)
    value, second = torch.maximum(red, more), torch.minimum(red, more)
    low = torch.minimum(second, less)
    chroma = value - low
    start = (12 * is_not_red).sub_(6).mul_(is_bluer).sub_(is_not_red, alpha=2)
    place = second.sub_(less).div_(chroma.clamp(min=1e-12)).add_(start).abs_().add_(6 * turn)
    place.sub_((place * (1 / 6)).floor_(), alpha=6)
    # A channel has the full value near its own position, the smallest far from it, and interpolates in between.
    for channel, away in ((red, 3), (green, 2), (blue, 4)):
        torch.sub(place, away, out=channel).abs_()
    x.clamp_(1, 2)
    torch.addcmul(low.sub_(chroma), red, chroma, out=red)
    value.add_(chroma)
    torch.addcmul(value, green, chroma, value=-1, out=green)
    torch.addcmul(value, blue, chroma, value=-1, out=blue)
