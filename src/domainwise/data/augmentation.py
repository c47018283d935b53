"""Another view of each image of a batch: cropped, mirrored and recoloured, every image in its own way.

What the field does to training images, each change as torchvision means it: a random resized crop (scale .7 to 1), a
horizontal flip, colour jitter of .3 in brightness, contrast, saturation and hue, in random order, and one image in ten
in gray. Images of other than three channels keep their colours, but not their brightness and contrast.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

_SCALE, _RATIO = (0.7, 1.0), (3 / 4, 4 / 3)
_TRIES = 10
_JITTER = 0.3
_GRAYSCALE = 0.1
_LUMINANCE = (0.299, 0.587, 0.114)
# Images that share the order of their colour changes: at most so many, with at most so many values between them, so
# that what is computed on the way stays in the processor's cache.
_GROUP, _GROUP_VALUES = 16, 650_000


def augment_batch(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Random views, in [0, 1] and channels-last, of images (b, C, H, W) in bytes or in floats."""
    if x.ndim != 4:
        raise ValueError(f"augmentation is for images (b, C, H, W), not for inputs of shape {tuple(x.shape)}")
    # Drawn on the CPU, so that a seed means the same on every device.
    count = len(x)
    place = torch.rand(2 * _TRIES + 3, count, generator=generator, dtype=torch.float64)
    dtype = torch.float32 if x.dtype == torch.uint8 else x.dtype
    jitter = torch.rand(5, count, 1, 1, 1, generator=generator).to(dtype)
    size = max(1, min(_GROUP, _GROUP_VALUES // max(1, x[:1].numel())))
    orders = torch.rand(math.ceil(count / size), 4, generator=generator).argsort(1).tolist()
    windows, is_mirrored = _windows(place, *x.shape[2:])
    view = torch.empty_like(x, dtype=dtype, memory_format=torch.channels_last)
    crop = _cropped_bytes if x.dtype == torch.uint8 and x.device.type == "cpu" else _cropped
    for group, order in enumerate(orders):
        some = slice(group * size, (group + 1) * size)
        part = crop(x[some], windows[:, some], is_mirrored[some])
        view[some] = _recoloured(part, jitter[:, some].to(x.device), order)
    return view


def _windows(draw: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Top, left, height and width of a window an image, (4, b), in whole pixels, and whether it is mirrored, (b,)."""
    area = (_SCALE[0] + (_SCALE[1] - _SCALE[0]) * draw[:_TRIES]) * height * width
    low, high = math.log(_RATIO[0]), math.log(_RATIO[1])
    ratio = (low + (high - low) * draw[_TRIES : 2 * _TRIES]).exp()
    wide, tall = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    # The first that lies inside the image; where none does, the largest of an allowed shape.
    fits = (wide >= 1) & (wide <= width) & (tall >= 1) & (tall <= height)
    first = fits.int().argmax(0, keepdim=True)
    largest = (min(height, round(width / _RATIO[0])), min(width, round(height * _RATIO[1])))
    found = fits.any(0)
    tall = torch.where(found, tall.gather(0, first)[0], largest[0])
    wide = torch.where(found, wide.gather(0, first)[0], largest[1])
    down, across, mirror = draw[2 * _TRIES :]
    top = torch.where(found, (down * (height - tall + 1)).floor(), ((height - tall) / 2).floor())
    left = torch.where(found, (across * (width - wide + 1)).floor(), ((width - wide) / 2).floor())
    return torch.stack([top, left, tall, wide]), mirror < 0.5


def _cropped(x: Tensor, windows: Tensor, is_mirrored: Tensor) -> Tensor:
    """The window of each image, perhaps mirrored, stretched to the whole; contiguous floats."""
    # Colour changes are fastest on whole planes of a colour.
    x = x.float().div_(255).contiguous() if x.dtype == torch.uint8 else x.contiguous()
    top, left, tall, wide = windows[:, :, None]
    height, width = x.shape[2:]
    rows = _sources(top, tall, height)
    columns = _sources(left, wide, width)
    columns = torch.where(is_mirrored[:, None], columns.flip(1), columns)
    # To grid_sample's coordinates, in which -1 and 1 are the outer edges of the image.
    down, across = ((2 * rows + 1) / height - 1).to(x), ((2 * columns + 1) / width - 1).to(x)
    grid = torch.stack(torch.broadcast_tensors(across[:, None, :], down[:, :, None]), dim=3)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def _cropped_bytes(x: Tensor, windows: Tensor, is_mirrored: Tensor) -> Tensor:
    """The same on a processor, rounded to bytes: its kernel for resizing them is twice as fast as a grid."""
    cropped = torch.empty(x.shape)
    for index, (top, left, tall, wide) in enumerate(windows.T.int().tolist()):
        window = x[index : index + 1, :, top : top + tall, left : left + wide]
        window = window.flip(3) if is_mirrored[index] else window
        cropped[index] = F.interpolate(window, size=x.shape[2:], mode="bilinear", align_corners=False)[0]
    return cropped.div_(255)


def _sources(start: Tensor, length: Tensor, count: int) -> Tensor:
    """Where in the image each of `count` pixels comes from, (b, count): never from outside the window."""
    place = (torch.arange(count, dtype=torch.float64) + 0.5) * length / count - 0.5
    return start + torch.minimum(place.clamp(min=0), length - 1)


def _recoloured(x: Tensor, draw: Tensor, order: list[int]) -> Tensor:
    """Colour changes in the given order, in place: every pass over the images costs as much as the arithmetic."""
    factor = 1 + _JITTER * (2 * draw - 1)
    is_coloured = x.shape[1] == 3
    for change in order:
        if change == 0:
            x.mul_(factor[0])
        elif change == 1:
            torch.addcmul((1 - factor[1]) * _mean_gray(x), x, factor[1], out=x)
        elif change == 2 and is_coloured:
            torch.addcmul((1 - factor[2]) * _gray(x), x, factor[2], out=x)
        elif change == 3 and is_coloured:
            _turn_hue(x, factor[3, :, 0] - 1)
        x.clamp_(0, 1)
    if is_coloured:
        for index in (draw[4].flatten() < _GRAYSCALE).nonzero().flatten().tolist():
            x[index] = _gray(x[index : index + 1])[0]
    return x


def _gray(x: Tensor) -> Tensor:
    """Luminance, (b, 1, H, W)."""
    red, green, blue = _LUMINANCE
    return (x[:, :1] * red).add_(x[:, 1:2], alpha=green).add_(x[:, 2:], alpha=blue)


def _mean_gray(x: Tensor) -> Tensor:
    """Mean luminance of each image, (b, 1, 1, 1); plain mean where there are not three channels."""
    means = x.mean((2, 3), keepdim=True)
    return _gray(means) if x.shape[1] == 3 else means.mean(1, keepdim=True)


def _turn_hue(x: Tensor, turn: Tensor) -> None:
    """Moves the hue along the colour circle by `turn` of it, (b, 1, 1), in place; value and saturation stay."""
    red, green, blue = x.unbind(1)
    # The place on a circle of six sixths, counted from red. Whichever channels are the largest and the second, it is
    # (second - least) / chroma counted up or down from a multiple of 2; choosing by `where` would take twice as long.
    more, less = torch.maximum(green, blue), torch.minimum(green, blue)
    is_bluer = (blue - green).sign_().clamp_(min=0)
    is_not_red = (more - red).sign_().clamp_(min=0)
    value, second = torch.maximum(red, more), torch.minimum(red, more)
    low = torch.minimum(second, less)
    chroma = value - low
    start = (12 * is_not_red).sub_(6).mul_(is_bluer).sub_(is_not_red, alpha=2)
    place = second.sub_(less).div_(chroma.clamp(min=1e-12)).add_(start).abs_().add_(6 * turn)
    place.sub_((place * (1 / 6)).floor_(), alpha=6)
    # A channel has the value near its own place, the least far from it, and a share of the chroma in between.
    for channel, away in ((red, 3), (green, 2), (blue, 4)):
        torch.sub(place, away, out=channel).abs_()
    x.clamp_(1, 2)
    torch.addcmul(low.sub_(chroma), red, chroma, out=red)
    value.add_(chroma)
    torch.addcmul(value, green, chroma, value=-1, out=green)
    torch.addcmul(value, blue, chroma, value=-1, out=blue)
