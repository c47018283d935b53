"""What a perturbation may change: the pixels, filter, tone or frequencies of an image, or the features of a network.

A prior maps an image and one point per sample, the coordinates of its perturbation, to the perturbed image. Sharing,
steps and balls work on the points, whatever they mean. The zero point changes nothing, to the bit.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.perturbations.checks import check_integer

if TYPE_CHECKING:
    from domainwise.perturbations.base import Norm

# Standard deviation of the values of a typical photograph. A shift of brightness is measured in it, so that it changes
# pixels about as much as a relative change of contrast of the same size.
CONTRAST = 0.25
# Gains of frequencies stay between 1/4 and 4.
_LARGEST_LOG_GAIN = math.log(4)


class Prior(ABC):
    """What a perturbation may change."""

    name: str
    # Whether `draw` has points that look like the shift; otherwise random points are uniform in the ball.
    has_own_draws = False

    @abstractmethod
    def point_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the point of one sample whose image has this shape."""

    @abstractmethod
    def apply(self, image: Tensor, points: Tensor) -> Tensor:
        """Return the perturbed images (b, *shape), unclipped, from one point per sample (b, *point_shape)."""

    def unit(self, point_shape: tuple[int, ...], norm: "Norm") -> float:
        """Return the factor on points in the ball: in l2, a radius is a root mean square over their entries."""
        return math.sqrt(math.prod(point_shape)) if norm == "l2" else 1.0

    def draw(self, noise: Tensor, uniform: Tensor) -> Tensor:
        """Return random points from N(0, 1) noise (n, *point_shape) and two U(0, 1) values each (n, 2)."""
        raise NotImplementedError(f"random points of {self!r} are uniform in the ball")

    @contextmanager
    def active(self, index: Tensor | None = None) -> Iterator[None]:
        """Context in which the network changes what `apply` cannot: these samples of its batch, or the first ones."""
        yield

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class PixelPrior(Prior):
    """Any change of each pixel: points are added to the image. The prior of the MAT and LDAT paper."""

    name = "pixels"

    def point_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape

    def unit(self, point_shape: tuple[int, ...], norm: "Norm") -> float:
        # A radius is the norm over the whole image.
        return 1.0

    def apply(self, image: Tensor, points: Tensor) -> Tensor:
        return image + points


class FilterPrior(Prior):
    """A linear filter: `x + kernel * (x - mean) + shift`, with a kernel per pair of channels and a shift per channel.

    The mean of each channel over the image is kept, but for the shift. Size 1 is a colour matrix, larger kernels blur,
    sharpen and change texture. A radius of 1 is the size of the identity filter: such a ball contains the filter that
    removes all contrast. Random draws are those of RandConv (Xu et al. 2021), as far as they are inside the ball:
    kernels of a random odd size up to `size`, mixed with the image in a random share.

    Args:
        size: Height and width of the kernel, odd.
    """

    name = "filter"
    has_own_draws = True

    def __init__(self, size: int = 5) -> None:
        self.size = check_integer("size", size, minimum=1)
        if self.size % 2 == 0:
            raise ValueError(f"size must be odd, so that the kernel has a centre, got {size}")

    def point_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        channels, _, _ = check_image_shape(shape, self)
        # A row per output channel: its kernel for each input channel, and its shift.
        return channels, channels * self.size**2 + 1

    def unit(self, point_shape: tuple[int, ...], norm: "Norm") -> float:
        return math.sqrt(point_shape[0]) if norm == "l2" else 1.0

    def apply(self, image: Tensor, points: Tensor) -> Tensor:
        count, channels, height, width = image.shape
        kernels = points[:, :, :-1].reshape(count * channels, channels, self.size, self.size)
        shift = CONTRAST * points[:, :, -1, None, None]
        centred = (image - image.mean((2, 3), keepdim=True)).contiguous().reshape(1, -1, height, width)
        # Samples are groups of one convolution. Around a centred image, zeros are its mean.
        filtered = F.conv2d(centred, kernels, padding=self.size // 2, groups=count)
        return image + filtered.reshape(image.shape) + shift

    def draw(self, noise: Tensor, uniform: Tensor) -> Tensor:
        count, channels, _ = noise.shape
        kernels = noise[:, :, :-1].reshape(count, channels, channels, self.size, self.size)
        sizes = 2 * (uniform[:, 0] * (self.size // 2 + 1)).floor() + 1
        place = (torch.arange(self.size, device=noise.device) - self.size // 2).abs()
        is_used = place <= (sizes[:, None] - 1) / 2
        window = (is_used[:, :, None] & is_used[:, None, :])[:, None, None]
        kernels = kernels * window / (sizes * math.sqrt(channels)).reshape(-1, 1, 1, 1, 1)
        centre = self.size // 2
        identity = torch.zeros_like(kernels[0])
        identity[:, :, centre, centre] = torch.eye(channels, dtype=noise.dtype, device=noise.device)
        kernels = uniform[:, 1].reshape(-1, 1, 1, 1, 1) * (kernels - identity)
        return torch.cat([kernels.flatten(2), torch.zeros_like(noise[:, :, :1])], dim=2)

    def __repr__(self) -> str:
        return f"FilterPrior({self.size})"


class TonePrior(Prior):
    """Contrast and brightness of each channel: two numbers per channel.

    With a radius of .5, contrast changes by a factor of about `exp(.5)` and brightness by .5 x .25.
    """

    name = "tone"

    def point_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return 2, check_image_shape(shape, self)[0]

    def apply(self, image: Tensor, points: Tensor) -> Tensor:
        contrast, brightness = points[..., None, None].unbind(1)
        centred = image - image.mean((2, 3), keepdim=True)
        return image + centred * _limit(contrast).expm1() + CONTRAST * brightness


class SpectrumPrior(Prior):
    """The amplitudes of low frequencies, per channel; phases, and so the places of edges, stay.

    Points are logarithms of gains, for frequencies up to half of the largest. A radius is their root mean square
    (l2) or largest value (linf). Gains stay between 1/4 and 4, and brightness stays.
    """

    name = "spectrum"

    def point_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        channels, height, width = check_image_shape(shape, self)
        if min(height, width) < 4:
            raise ValueError(f"images of at least 4 x 4 pixels have frequencies to change, got shape {tuple(shape)}")
        return channels, 2 * (height // 4) + 1, width // 4 + 1

    def apply(self, image: Tensor, points: Tensor) -> Tensor:
        height, width = image.shape[2:]
        top, right = height // 4 + 1, width // 4 + 1
        gain = _limit(points).expm1().unsqueeze(-1)
        waves = torch.view_as_real(torch.fft.rfft2(image - image.mean((2, 3), keepdim=True)))[:, :, :, :right]
        # Rows are in the order of the transform: 0 to the largest positive frequency, then the negative ones.
        middle = waves.new_zeros(*waves.shape[:2], height - points.shape[2], right, 2)
        positive, negative = waves[:, :, :top] * gain[:, :, :top], waves[:, :, 1 - top :] * gain[:, :, top:]
        change = torch.cat([positive, middle, negative], dim=2)
        changed: Tensor = torch.fft.irfft2(torch.view_as_complex(change), s=(height, width))
        return image + changed


def _limit(log_gain: Tensor) -> Tensor:
    """Return the logarithm of a gain, smoothly limited; small ones hardly change."""
    return _LARGEST_LOG_GAIN * (log_gain / _LARGEST_LOG_GAIN).tanh()


def check_prior(prior: Any) -> Prior:
    """Return the prior; None stands for pixels."""
    if prior is None:
        return PixelPrior()
    if not isinstance(prior, Prior):
        raise TypeError(f"prior must be an object such as FilterPrior(5) or TonePrior(), got {prior!r}")
    return prior


def check_image_shape(shape: Sequence[int], prior: Prior) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ValueError(f"prior {prior.name!r} needs images of shape (channels, height, width), got {tuple(shape)}")
    channels, height, width = shape
    return channels, height, width


class FeaturePrior(Prior):
    """Mean and standard deviation of each channel of chosen layers, the style of their features.

    Points are in units of the standard deviation of these statistics over the batch, as in DSU (Li et al. 2022). The
    change is made inside the network, so it is seen only inside `attack` and `perturbation.applied()`:

        perturbation = UniversalPerturbation(shape, prior=FeaturePrior(model, ["layer1", "layer2"]), epsilon=0.5)
        x = perturbation.attack(x, domain, loss_fn)
        with perturbation.applied():
            loss = F.cross_entropy(model(x), y)

    Args:
        model: Network that the loss is computed with, also if it is wrapped or compiled later.
        layers: Names of its modules whose outputs change, as in `model.get_submodule`. An output is (b, C, H, W), or
            (b, tokens, C).
    """

    name = "features"

    def __init__(self, model: nn.Module, layers: Sequence[str]) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
        if isinstance(layers, str) or not layers:
            raise ValueError(f"layers must be names of modules of the model, such as ['layer1'], got {layers!r}")
        known = dict(model.named_modules())
        for layer in layers:
            if layer not in known:
                raise ValueError(
                    f"layer {layer!r} is not a module of the model; its first ones are {_list_some(known)}"
                )
        self.model = model
        self.layers = tuple(layers)
        self._counts: list[int] = []
        self._points: Tensor | None = None

    def point_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        self._counts = self._count_channels(shape)
        return 2, sum(self._counts)

    def apply(self, image: Tensor, points: Tensor) -> Tensor:
        self._points = points
        return image

    @contextmanager
    def active(self, index: Tensor | None = None) -> Iterator[None]:
        if self._points is None:
            raise RuntimeError("perturbation.applied() follows attack() or a call of the perturbation")
        parts = self._points.split(self._counts, dim=2)
        change = dict(zip(self.layers, parts, strict=True))
        # Code that was compiled without the hooks does not call them.
        with (
            torch.compiler.set_stance("force_eager"),
            self._hooks(lambda name, output: _restyle(output, change[name], index, name)),
        ):
            yield

    @contextmanager
    def _hooks(self, function: Callable[[str, Tensor], Tensor | None]) -> Iterator[None]:
        """Call the function with the name and output of each layer; what it returns replaces the output."""

        def make_hook(name: str) -> Callable[..., Any]:
            return lambda _module, _inputs, output: function(name, output)

        modules = [(name, self.model.get_submodule(name)) for name in self.layers]
        handles = [module.register_forward_hook(make_hook(name)) for name, module in modules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @torch.no_grad()
    def _count_channels(self, shape: tuple[int, ...]) -> list[int]:
        """Return the number of channels of each layer's output, from a forward pass in eval mode."""
        parameter = next(self.model.parameters(), torch.empty(0))
        x = torch.zeros(2, *shape, dtype=parameter.dtype, device=parameter.device)
        counts: dict[str, int] = {}
        modes = [(module, module.training) for module in self.model.modules()]

        def count(name: str, output: Tensor) -> None:
            counts[name] = output.shape[_channel_dim(output, name)]

        try:
            with torch.compiler.set_stance("force_eager"), self._hooks(count):
                self.model.eval()(x)
        finally:
            for module, was_training in modes:
                module.training = was_training
        for name in self.layers:
            if name not in counts:
                raise ValueError(f"layer {name!r} is not called in the forward pass of the model")
        return [counts[name] for name in self.layers]

    def __repr__(self) -> str:
        return f"FeaturePrior({type(self.model).__name__}, {list(self.layers)})"


def _restyle(output: Tensor, points: Tensor, index: Tensor | None, name: str) -> Tensor:
    """Change mean and standard deviation of the channels of a layer's output, for the samples that have points.

    Args:
        index: the samples; None: the first ones.
    """
    if len(output) < len(points):
        raise ValueError(
            f"layer {name!r} got a batch of {len(output)} samples, but the last attack had {len(points)}; inside "
            "perturbation.applied() the network gets the batch of the attack"
        )
    is_map = _channel_dim(output, name) == 1
    part = output[: len(points)] if index is None else output[index]
    dims = tuple(range(2, part.ndim)) if is_map else (1,)
    with torch.autocast(output.device.type, enabled=False):
        features = part.float() if part.dtype in (torch.float16, torch.bfloat16) else part
        variance, mean = torch.var_mean(features, dims, correction=0, keepdim=True)
        deviation = (variance + 1e-6).sqrt()
        # The unit of a change: how much the statistics of this batch differ.
        mean_unit, deviation_unit = (each.detach().std(0, correction=0, keepdim=True) for each in (mean, deviation))
        mean_change, deviation_change = (
            each.reshape(mean.shape).to(features.dtype) * unit
            for each, unit in zip(points.unbind(1), (mean_unit, deviation_unit), strict=True)
        )
        changed = features + (features - mean) * (deviation_change / deviation) + mean_change
    changed = changed.to(output.dtype)
    if index is not None:
        return output.index_copy(0, index, changed)
    return changed if len(points) == len(output) else torch.cat([changed, output[len(points) :]])


def _channel_dim(output: Any, name: str) -> int:
    """Return the dimension of channels: 1 of a map (b, C, H, W), the last of tokens (b, tokens, C)."""
    if not isinstance(output, Tensor) or output.ndim not in (3, 4):
        kind = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(f"layer {name!r} must have outputs (b, C, H, W) or (b, tokens, C), got {kind}")
    return 1 if output.ndim == 4 else 2


def _list_some(names: Iterable[str]) -> str:
    return ", ".join([name for name in names if name and "." not in name][:5])
